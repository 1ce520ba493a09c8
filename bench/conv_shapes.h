#pragma once

// The convolutions of some models.

#include <sstream>
#include <string>
#include <vector>

#include "lockstep/autograd/ops/conv2d/conv2d_kernels.h"

namespace conv_shapes {

struct Shape {
  std::string name;
  lockstep::Conv2dGeometry geometry;
};

inline Shape make(const std::string& name, std::int64_t n, std::int64_t in, std::int64_t side, std::int64_t out,
                  std::int64_t kernel, std::int64_t stride = 1, std::int64_t padding = 0, std::int64_t groups = 1,
                  std::int64_t dilation = 1) {
  const std::int64_t result = (side + 2 * padding - dilation * (kernel - 1) - 1) / stride + 1;
  return {name,
          {.n = n,
           .in = in,
           .h = side,
           .w = side,
           .out = out,
           .kh = kernel,
           .kw = kernel,
           .oh = result,
           .ow = result,
           .stride = stride,
           .padding = padding,
           .dilation = dilation,
           .groups = groups}};
}

inline std::vector<Shape> all() {
  return {make("lenet conv1", 64, 1, 28, 10, 5),
          make("lenet conv2", 64, 10, 12, 20, 5),
          make("cnn conv1", 64, 1, 28, 32, 3),
          make("cnn conv2", 16, 32, 26, 64, 3),
          make("resnet18 stem", 8, 3, 32, 64, 3, 1, 1),
          make("resnet18 layer1", 8, 64, 32, 64, 3, 1, 1),
          make("resnet18 layer2 first", 8, 64, 32, 128, 3, 2, 1),
          make("resnet18 layer2 skip", 8, 64, 32, 128, 1, 2),
          make("resnet18 layer2", 8, 128, 16, 128, 3, 1, 1),
          make("resnet18 layer3 first", 8, 128, 16, 256, 3, 2, 1),
          make("resnet18 layer3 skip", 8, 128, 16, 256, 1, 2),
          make("resnet18 layer3", 8, 256, 8, 256, 3, 1, 1),
          make("resnet18 layer4 first", 8, 256, 8, 512, 3, 2, 1),
          make("resnet18 layer4 skip", 8, 256, 8, 512, 1, 2),
          make("resnet18 layer4", 8, 512, 4, 512, 3, 1, 1),
          make("imagenet stem", 1, 3, 224, 64, 7, 2, 3),
          make("1x1 64 to 256", 4, 64, 28, 256, 1),
          make("1x1 256 to 64", 4, 256, 28, 64, 1),
          make("1x1 512 to 128", 4, 512, 14, 128, 1),
          make("5x5 of 14", 4, 64, 14, 96, 5, 1, 2),
          make("7x7 of 7", 8, 64, 7, 64, 7, 1, 3),
          make("dilated", 4, 64, 28, 64, 3, 1, 2, 1, 2),
          make("4 groups", 4, 128, 28, 128, 3, 1, 1, 4),
          make("depthwise 32", 8, 32, 56, 32, 3, 1, 1, 32),
          make("depthwise 128", 8, 128, 28, 128, 3, 1, 1, 128),
          make("depthwise 128 strided", 8, 128, 28, 128, 3, 2, 1, 128)};
}

/// The arguments of make() behind the name, separated by commas; shapes by colons.
inline std::vector<Shape> parse(const std::string& text) {
  std::vector<Shape> shapes;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, ':');) {
    std::int64_t values[] = {1, 1, 1, 1, 1, 1, 0, 1, 1};
    std::istringstream numbers(word);
    std::string number;
    for (std::int64_t* value = values; value < std::end(values) && std::getline(numbers, number, ','); ++value)
      *value = std::stoll(number);
    shapes.push_back(
        make(word, values[0], values[1], values[2], values[3], values[4], values[5], values[6], values[7], values[8]));
  }
  return shapes;
}

}  // namespace conv_shapes
