#pragma once

// The matrix products of some models, forward and for both gradients.

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

namespace gemm_shapes {

struct Shape {
  std::string name;
  bool transpose_a, transpose_b;
  std::int64_t m, n, k;
};

/// A linear layer of `rows` samples or tokens.
inline void add_linear(std::vector<Shape>& shapes, const std::string& name, std::int64_t rows, std::int64_t inputs,
                       std::int64_t outputs) {
  shapes.push_back({name + " forward", false, true, rows, outputs, inputs});
  shapes.push_back({name + " grad x", false, false, rows, inputs, outputs});
  shapes.push_back({name + " grad w", true, false, outputs, inputs, rows});
}

/// A convolution as products of image columns, one image at a time.
inline void add_conv(std::vector<Shape>& shapes, const std::string& name, std::int64_t in, std::int64_t out,
                     std::int64_t taps, std::int64_t positions) {
  shapes.push_back({name + " forward", false, false, out, positions, in * taps});
  shapes.push_back({name + " grad x", true, false, in * taps, positions, out});
  shapes.push_back({name + " grad w", false, true, out, in * taps, positions});
}

inline std::vector<Shape> all() {
  std::vector<Shape> shapes;
  for (const std::int64_t side : {256, 512, 1024, 2048})
    shapes.push_back({"square " + std::to_string(side), false, false, side, side, side});
  add_linear(shapes, "lenet fc1, batch 64", 64, 320, 50);
  add_linear(shapes, "lenet fc2, batch 64", 64, 50, 10);
  add_conv(shapes, "lenet conv2", 10, 20, 25, 64);
  add_linear(shapes, "cnn fc1, batch 64", 64, 9216, 128);
  add_linear(shapes, "cnn fc1, batch 8", 8, 9216, 128);
  add_linear(shapes, "cnn fc2, batch 64", 64, 128, 10);
  add_conv(shapes, "cnn conv1", 1, 32, 9, 676);
  add_conv(shapes, "cnn conv2", 32, 64, 9, 576);
  add_linear(shapes, "mlp fc1, batch 64", 64, 784, 512);
  add_linear(shapes, "mlp fc1, batch 8", 8, 784, 512);
  add_linear(shapes, "mlp fc3, batch 64", 64, 512, 10);
  add_conv(shapes, "resnet18 stem", 3, 64, 9, 1024);
  add_conv(shapes, "resnet18 layer1", 64, 64, 9, 1024);
  add_conv(shapes, "resnet18 layer2", 128, 128, 9, 256);
  add_conv(shapes, "resnet18 layer3", 256, 256, 9, 64);
  add_conv(shapes, "resnet18 layer4", 512, 512, 9, 16);
  add_linear(shapes, "gpt 384 qkv, 512 tokens", 512, 384, 1152);
  add_linear(shapes, "gpt 384 mlp, 512 tokens", 512, 384, 1536);
  add_linear(shapes, "gpt 384 head, 256 tokens", 256, 384, 65);
  add_linear(shapes, "gpt 768 qkv, 256 tokens", 256, 768, 2304);
  add_linear(shapes, "gpt 768 mlp, 256 tokens", 256, 3072, 768);
  shapes.push_back({"gpt 768 scores, one head", false, true, 256, 256, 64});
  shapes.push_back({"gpt 768 values, one head", false, false, 256, 64, 256});
  add_linear(shapes, "gpt 768 one token", 1, 768, 768);
  return shapes;
}

/// "NT,64,10,50": whether each operand is transposed, m, n, k; shapes are separated by colons.
inline std::vector<Shape> parse(const std::string& text) {
  std::vector<Shape> shapes;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ':');) {
    std::istringstream numbers(word.substr(2));
    Shape shape{word, word.at(0) == 'T', word.at(1) == 'T', 0, 0, 0};
    char comma = 0;
    numbers >> comma >> shape.m >> comma >> shape.n >> comma >> shape.k;
    shapes.push_back(shape);
  }
  return shapes;
}

}  // namespace gemm_shapes
