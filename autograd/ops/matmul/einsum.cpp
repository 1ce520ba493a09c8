#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <utility>

#include "lockstep/autograd/ops/binary/binary.h"
#include "lockstep/autograd/ops/matmul/matmul.h"
#include "lockstep/autograd/ops/reduce/reduce.h"
#include "lockstep/autograd/ops/view/view.h"
#include "lockstep/core/check.h"

namespace lockstep {
namespace {

// Dimensions by name: a letter, or '0', '1', ... for those that "..." stands for, the last one '0'.
using Letters = std::string;

/// A tensor and the names of its dimensions, each once.
struct Factor {
  Tensor tensor;
  Letters letters;
};

bool has(const Letters& letters, char letter) {
  return letters.find(letter) != Letters::npos;
}

/// Replaces "..." by the names of `count` dimensions.
Letters spelled_out(const std::string& term, int count, const std::string& equation) {
  Letters letters;
  for (std::size_t i = 0; i < term.size(); ++i) {
    if (term.compare(i, 3, "...") == 0) {
      for (int d = count - 1; d >= 0; --d) letters += static_cast<char>('0' + d);
      i += 2;
      continue;
    }
    LOCKSTEP_CHECK(std::isalpha(static_cast<unsigned char>(term[i])),
                   "[einsum] unexpected '{}' in \"{}\"; dimensions are letters, or ...", term[i], equation);
    letters += term[i];
  }
  return letters;
}

/// Takes the diagonal of dimensions that have one name.
Factor without_repeats(Factor factor, const std::string& equation) {
  for (std::size_t i = 0; i < factor.letters.size(); ++i) {
    const std::size_t j = factor.letters.find(factor.letters[i], i + 1);
    if (j == Letters::npos) continue;
    const auto a = static_cast<std::int64_t>(i), b = static_cast<std::int64_t>(j);
    LOCKSTEP_CHECK(factor.tensor.size(a) == factor.tensor.size(b),
                   "[einsum] '{}' in \"{}\" stands for sizes {} and {} of one operand", factor.letters[i], equation,
                   factor.tensor.size(a), factor.tensor.size(b));
    const char letter = factor.letters[i];
    factor.tensor = diagonal(factor.tensor, 0, a, b);
    factor.letters.erase(j, 1);
    factor.letters.erase(i, 1);
    factor.letters += letter;
    return without_repeats(std::move(factor), equation);
  }
  return factor;
}

/// Sums over the dimensions that nobody else wants.
Factor summed(Factor factor, const Letters& wanted) {
  Shape dims;
  Letters kept;
  for (std::size_t i = 0; i < factor.letters.size(); ++i) {
    if (has(wanted, factor.letters[i]))
      kept += factor.letters[i];
    else
      dims.push_back(static_cast<std::int64_t>(i));
  }
  if (!dims.empty()) factor.tensor = sum(factor.tensor, dims).to(factor.tensor.dtype());
  factor.letters = kept;
  return factor;
}

/// A view with these dimensions in this order, of size 1 where it has none.
Tensor aligned(const Factor& factor, const Letters& order) {
  Shape dims;
  for (const char letter : order)
    if (has(factor.letters, letter)) dims.push_back(static_cast<std::int64_t>(factor.letters.find(letter)));
  Tensor view = factor.tensor.permute(dims);
  for (std::size_t i = 0; i < order.size(); ++i)
    if (!has(factor.letters, order[i])) view = view.unsqueeze(static_cast<std::int64_t>(i));
  return view;
}

/// The product of two factors, summed over what `wanted` does not have.
Factor multiplied(Factor a, Factor b, const Letters& wanted) {
  a = summed(std::move(a), wanted + b.letters);
  b = summed(std::move(b), wanted + a.letters);
  Letters batch, rows, columns, inner;
  const auto size_of = [](const Factor& f, char letter) {
    return f.tensor.size(static_cast<std::int64_t>(f.letters.find(letter)));
  };
  for (const char letter : a.letters) {
    if (!has(b.letters, letter))
      rows += letter;
    else if (has(wanted, letter))
      batch += letter;
    else
      inner += letter;
  }
  for (const char letter : b.letters)
    if (!has(a.letters, letter)) columns += letter;
  for (const char letter : inner) {
    if (size_of(a, letter) == size_of(b, letter)) continue;
    Factor& one = size_of(a, letter) == 1 ? a : b;  // repeats: the sum is the other's alone
    LOCKSTEP_CHECK(size_of(one, letter) == 1, "[einsum] '{}' stands for sizes {} and {}", letter, size_of(a, letter),
                   size_of(b, letter));
    one.tensor = one.tensor.squeeze(static_cast<std::int64_t>(one.letters.find(letter)));
    std::erase(one.letters, letter);
    return multiplied(std::move(a), std::move(b), wanted);
  }
  if (inner.empty()) {
    const Letters order = batch + rows + columns;
    return {aligned(a, order) * aligned(b, order), order};
  }
  Shape sizes, batches;
  for (const char letter : batch) batches.push_back(std::max(size_of(a, letter), size_of(b, letter)));
  sizes = batches;
  std::array<std::int64_t, 3> flat{1, 1, 1};  // rows, inner, columns
  for (const char letter : rows) {
    sizes.push_back(size_of(a, letter));
    flat[0] *= size_of(a, letter);
  }
  for (const char letter : inner) flat[1] *= size_of(a, letter);
  for (const char letter : columns) {
    sizes.push_back(size_of(b, letter));
    flat[2] *= size_of(b, letter);
  }
  const auto as_matrices = [&](const Factor& f, const Letters& order, std::int64_t m, std::int64_t n) {
    Tensor view = aligned(f, order);
    Shape shape;
    for (std::size_t i = 0; i < batch.size(); ++i) shape.push_back(view.size(static_cast<std::int64_t>(i)));
    shape.push_back(m);
    shape.push_back(n);
    return view.reshape(shape);
  };
  const Tensor product = matmul(as_matrices(a, batch + rows + inner, flat[0], flat[1]),
                                as_matrices(b, batch + inner + columns, flat[1], flat[2]));
  return {product.reshape(sizes), batch + rows + columns};
}

std::vector<std::string> split_terms(const std::string& text) {
  std::vector<std::string> terms(1);
  for (const char c : text) {
    if (c == ',')
      terms.emplace_back();
    else
      terms.back() += c;
  }
  return terms;
}

}  // namespace

Tensor einsum(const std::string& equation, const std::vector<Tensor>& operands) {
  std::string text;
  for (const char c : equation)
    if (c != ' ') text += c;
  const std::size_t arrow = text.find("->");
  const std::vector<std::string> terms = split_terms(text.substr(0, arrow));
  LOCKSTEP_CHECK(!operands.empty() && terms.size() == operands.size(), "[einsum] \"{}\" is for {} operands, found {}",
                 equation, terms.size(), operands.size());
  std::vector<Factor> factors;
  int dots = 0;
  for (std::size_t i = 0; i < terms.size(); ++i) {
    LOCKSTEP_CHECK(operands[i].defined(), "[einsum] operand {} is undefined", i);
    const bool open = terms[i].find("...") != std::string::npos;
    const int named = static_cast<int>(terms[i].size()) - (open ? 3 : 0), more = operands[i].dim() - named;
    LOCKSTEP_CHECK(open ? more >= 0 : more == 0, "[einsum] \"{}\" does not fit operand {} of shape {}", terms[i], i,
                   to_string(operands[i].sizes()));
    dots = std::max(dots, more);
    factors.push_back(without_repeats({operands[i], spelled_out(terms[i], more, equation)}, equation));
  }
  Letters result;
  if (arrow != std::string::npos) {
    result = spelled_out(text.substr(arrow + 2), text.find("...", arrow) == std::string::npos ? 0 : dots, equation);
  } else {
    std::string all, once;
    for (const std::string& term : terms) all += term;
    std::erase(all, '.');
    for (const char c : all)
      if (std::count(all.begin(), all.end(), c) == 1) once += c;
    std::sort(once.begin(), once.end());
    result = spelled_out("..." + once, dots, equation);
  }
  for (const char letter : result) {
    LOCKSTEP_CHECK(std::count(result.begin(), result.end(), letter) == 1,
                   "[einsum] '{}' is twice in the result of \"{}\"", letter, equation);
    LOCKSTEP_CHECK(std::any_of(factors.begin(), factors.end(), [&](const Factor& f) { return has(f.letters, letter); }),
                   "[einsum] '{}' in the result of \"{}\" is in no operand", letter, equation);
  }
  Factor product = factors[0];
  for (std::size_t i = 1; i < factors.size(); ++i) {
    Letters wanted = result;
    for (std::size_t j = i + 1; j < factors.size(); ++j) wanted += factors[j].letters;
    product = multiplied(std::move(product), factors[i], wanted);
  }
  return aligned(summed(std::move(product), result), result);
}

}  // namespace lockstep
