#include "lockstep/data/cifar.h"

#include <fmt/core.h>

#include "lockstep/data/data_loader.h"
#include "lockstep/data/sampler.h"
#include "tests/support/data_files.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using data::Batch;
using data::CifarDataset;

/// Byte b of image i in a file whose first image has number `first`.
std::uint8_t byte_of(std::int64_t image, std::size_t b) {
  return static_cast<std::uint8_t>((static_cast<std::size_t>(image) * 7 + b) % 253);
}

Bytes records(std::int64_t first, std::int64_t count, std::int64_t label_bytes = 1) {
  Bytes bytes;
  for (std::int64_t i = first; i < first + count; ++i) {
    for (std::int64_t l = 1; l < label_bytes; ++l) bytes.push_back(200);
    bytes.push_back(static_cast<std::uint8_t>(i % 10));
    for (std::size_t b = 0; b < 3072; ++b) bytes.push_back(byte_of(i, b));
  }
  return bytes;
}

void write_cifar10(const std::filesystem::path& place) {
  for (int file = 0; file < 5; ++file)
    write_file(place / fmt::format("data_batch_{}.bin", file + 1), records(file * 3, 3));
  write_file(place / "test_batch.bin", records(100, 2));
}

TEST(Cifar, NormalisesEachChannel) {
  TempDir dir;
  write_cifar10(dir / "cifar-10-batches-bin");
  const auto set = data::cifar10(dir.path());
  ASSERT_EQ(set->size(), 15);
  const std::vector<std::int64_t> indices{13, 0, 13};
  const Batch batch = set->get_batch(indices);
  EXPECT_EQ(batch.x.sizes(), (Shape{3, 3, 32, 32}));
  EXPECT_EQ(batch.y.to_vector<std::int64_t>(), (std::vector<std::int64_t>{3, 0, 3}));
  EXPECT_EQ(batch.global_size, 3);
  const std::vector<float> x = batch.x.to_vector<float>();
  const float mean[] = {0.4914f, 0.4822f, 0.4465f}, deviation[] = {0.2470f, 0.2435f, 0.2616f};
  for (std::size_t b = 0; b < 3072; ++b)
    ASSERT_EQ(x[b], (static_cast<float>(byte_of(13, b)) / 255.0f - mean[b / 1024]) / deviation[b / 1024]) << b;
  EXPECT_EQ(data::cifar10(dir.path(), {.train = false})->size(), 2);
  const auto plain =
      data::cifar10(dir.path(), {.mean = CifarDataset::Channels{}, .std = CifarDataset::Channels{1, 1, 1}});
  EXPECT_EQ(plain->get_batch(indices).x.to_vector<float>()[3], static_cast<float>(byte_of(13, 3)) / 255.0f);
  EXPECT_NE(plain->content(), set->content());
  EXPECT_EQ(data::cifar10(dir / "cifar-10-batches-bin")->content(), set->content());
  EXPECT_EQ(set->get_batch({}).x.sizes(), (Shape{0, 3, 32, 32}));
  EXPECT_EQ(set->image(4)[2], byte_of(4, 2));
  EXPECT_EQ(error_of([&] { set->label(15); }), "[CifarDataset] index 15 is out of range; expected 0 to 14");
}

TEST(Cifar, OfAHundredClassesHasTheFineLabels) {
  TempDir dir;
  write_file(dir / "cifar-100-binary/train.bin", records(0, 4, 2));
  const ScopedEnv data_root("LOCKSTEP_DATA", dir.path().c_str());
  const auto set = data::cifar100();
  EXPECT_EQ(set->label(3), 3);
  EXPECT_EQ(set->image(3)[0], byte_of(3, 0));
  EXPECT_EQ(set->mean()[2], 0.4409f);
  EXPECT_EQ(set->std()[0], 0.2673f);
}

TEST(Cifar, IsGivenByLoaders) {
  TempDir dir;
  write_cifar10(dir.path());
  const data::DataLoader loader(data::cifar10(dir.path()), {.batch_size = 4, .shuffle = true});
  std::int64_t samples = 0;
  for (const Batch& batch : loader.epoch(0)) samples += batch.size();
  EXPECT_EQ(samples, 15);
}

TEST(Cifar, SaysWhatIsWrongWithAFile) {
  TempDir dir;
  write_cifar10(dir.path());
  const auto error_with = [&](const Bytes& bytes) {
    write_file(dir / "data_batch_2.bin", bytes);
    return error_of([&] { data::cifar10(dir.path()); });
  };
  Bytes bytes = records(0, 2);
  bytes.pop_back();
  EXPECT_NE(error_with(bytes).find("data_batch_2.bin': a record at offset 3073 has 3072 bytes; expected 3073"),
            std::string::npos);
  bytes = records(0, 2);
  bytes[3073] = 10;
  EXPECT_NE(error_with(bytes).find("the label at offset 3073 is 10; expected 0 to 9"), std::string::npos);
  EXPECT_NE(error_with({}).find("data_batch_2.bin' holds no images"), std::string::npos);
  EXPECT_NE(error_of([&] {
              CifarDataset({dir / "data_batch_1.bin"}, 1, 10, {}, {1, 0, 1});
            }).find("std must be above 0"),
            std::string::npos);
}

TEST(Cifar, SaysWhereItLooked) {
  TempDir dir;
  std::filesystem::create_directories(dir / "cifar-10-batches-py");
  const std::string error = error_of([&] { data::cifar10(dir.path()); });
  for (const char* part : {"[CIFAR-10] no training set found; looked in '", "(has no data_batch_1.bin)",
                           "cifar-10-batches-bin' (no such directory)",
                           "cifar-10-batches-py' is the version for Python", "unpack CIFAR-10's binary version there"})
    EXPECT_NE(error.find(part), std::string::npos) << error;
}

}  // namespace
}  // namespace lockstep::testing
