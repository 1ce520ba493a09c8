// Owns the tests' precompiled header, and does nothing.
int main() {
  return 0;
}
