#include "lockstep/data/idx.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/support/data_files.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using data::IdxArray;
using data::read_idx;
using ::testing::Values;

Bytes operator+(Bytes a, const Bytes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Bytes cut(Bytes bytes, std::size_t by) {
  bytes.resize(bytes.size() - by);
  return bytes;
}

Bytes with_flip(Bytes bytes, std::size_t at) {
  bytes.at(at) ^= 0x10;
  return bytes;
}

const Bytes kGood = idx_bytes({5, 4, 3}, ramp(60));

TEST(Idx, ReadsRawAndGzipAlikeWhateverTheName) {
  TempDir dir;
  write_file(dir / "raw.gz", kGood);  // the name says gzip, the bytes do not
  write_file(dir / "packed", gzip(kGood));
  for (const char* name : {"raw.gz", "packed"}) {
    const IdxArray array = read_idx(dir / name);
    EXPECT_EQ(array.dims, (Shape{5, 4, 3})) << name;
    EXPECT_EQ(array.values, ramp(60)) << name;
  }
}

TEST(Idx, ReadsSeveralGzipMembersAsOneFile) {
  TempDir dir;
  const Bytes head(kGood.begin(), kGood.begin() + 20);
  const Bytes tail(kGood.begin() + 20, kGood.end());
  write_file(dir / "file", gzip(head) + gzip(tail));
  EXPECT_EQ(read_idx(dir / "file").values, ramp(60));
}

TEST(Idx, ReadsMoreThanItsBuffers) {
  TempDir dir;
  const Bytes values = ramp(9'000'000, 249, 7);
  write_file(dir / "file", gzip(idx_bytes({9000, 1000}, values)));
  EXPECT_EQ(read_idx(dir / "file", {.expected_dims = 2}).values, values);
}

TEST(Idx, ReadsEmptyArrays) {
  TempDir dir;
  write_file(dir / "file", idx_bytes({0, 28, 28}, {}));
  EXPECT_EQ(read_idx(dir / "file").dims, (Shape{0, 28, 28}));
}

struct BadFile {
  const char* name;
  Bytes bytes;
  int expected_dims;
  const char* message;
};

class BadIdx : public ::testing::TestWithParam<BadFile> {};

TEST_P(BadIdx, IsRefusedInOneLineThatNamesTheFile) {
  TempDir dir;
  write_file(dir / "file", GetParam().bytes);
  const std::string error = error_of([&] { read_idx(dir / "file", {.expected_dims = GetParam().expected_dims}); });
  EXPECT_NE(error.find(GetParam().message), std::string::npos) << error;
  EXPECT_NE(error.find((dir / "file").string()), std::string::npos) << error;
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
}

INSTANTIATE_TEST_SUITE_P(
    All, BadIdx,
    Values(BadFile{"empty", {}, 0, "ends at offset 0 inside the header; expected the magic number"},
           BadFile{"header_cut", cut(idx_bytes({5, 4, 3}, {}), 3), 0, "ends at offset 13 inside the header"},
           BadFile{"text", {'h', 'e', 'l', 'l', 'o'}, 0, "magic number at offset 0 is 0x68656c6c; expected 0x00000801"},
           BadFile{"wrong_type", idx_bytes({5, 4, 3}, ramp(60), 0x0d), 0, "is 0x00000d03"},
           BadFile{"wrong_rank", kGood, 1, "is 0x00000803; expected 0x00000801 (unsigned bytes, 1 dimension)"},
           BadFile{"no_dims", idx_bytes({}, {}), 0, "is 0x00000800"},
           BadFile{"nine_dims", idx_bytes({1, 1, 1, 1, 1, 1, 1, 1, 1}, {1}), 0, "is 0x00000809"},
           BadFile{"two_to_31_images", idx_bytes({0x80000000u, 28, 28}, ramp(784)), 3,
                   "[2147483648, 28, 28] at offset 4"},
           BadFile{"two_to_31_images_gzip", gzip(idx_bytes({0x80000000u, 28, 28}, ramp(784))), 3,
                   "[2147483648, 28, 28] at offset 4 claim more than the limit"},
           BadFile{"overflowing", idx_bytes({0xffffffffu, 0xffffffffu, 0xffffffffu}, {}), 3, "more than the limit"},
           BadFile{"truncated", cut(kGood, 7), 0, "claim 76 bytes of content; a file of 69 bytes holds at most 69"},
           BadFile{"trailing", kGood + Bytes{1}, 0, "content goes on after offset 76"},
           BadFile{"gzip_claims_too_much", gzip(idx_bytes({1u << 31}, ramp(10))), 1, "holds at most"},
           BadFile{"gzip_short_content", gzip(cut(kGood, 7)), 0, "content ends at offset 69; expected 76 bytes"},
           BadFile{"gzip_trailing_content", gzip(kGood + Bytes{1, 2}), 0, "content goes on after offset 76"},
           BadFile{"gzip_truncated", cut(gzip(idx_bytes({3000}, ramp(3000, 253, 91))), 100), 0, "is truncated"},
           BadFile{"gzip_without_checksum", cut(gzip(kGood), 5), 0, "is truncated"},
           BadFile{"gzip_flipped_data", with_flip(gzip(kGood), 40), 0, "damaged gzip data"},
           BadFile{"gzip_flipped_checksum", with_flip(gzip(kGood), gzip(kGood).size() - 7), 0, "incorrect data check"},
           BadFile{"gzip_flipped_length", with_flip(gzip(kGood), gzip(kGood).size() - 2), 0, "incorrect length check"},
           BadFile{"gzip_flipped_method", with_flip(gzip(kGood), 2), 0, "unknown compression method"},
           BadFile{"gzip_then_rubbish", gzip(kGood) + Bytes{'x', 'y'}, 0, "2 bytes follow the end of the gzip data"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Idx, NoFlippedBitOfAGzipFileChangesTheContentUnnoticed) {
  TempDir dir;
  const Bytes packed = gzip(kGood);
  std::size_t harmless = 0;
  for (std::size_t at = 0; at < packed.size(); ++at)
    for (int bit = 0; bit < 8; ++bit) {
      Bytes damaged = packed;
      damaged[at] ^= static_cast<std::uint8_t>(1 << bit);
      write_file(dir / "file", damaged);
      try {
        EXPECT_EQ(read_idx(dir / "file").values, ramp(60)) << "byte " << at << " bit " << bit;
        ++harmless;
      } catch (const Error&) {
      }
    }
  // Flags, time and system in gzip's header, and the bits that fill up the last byte of deflate data, mean nothing.
  EXPECT_LE(harmless, 7u * 8u + 7u);
}

TEST(Idx, AGzipBombIsReadNoFurtherThanItsHeaderSays) {
  TempDir dir;
  write_file(dir / "bomb", gzip(idx_bytes({10}, Bytes(64u << 20, 0))));
  const std::string error = error_of([&] { read_idx(dir / "bomb"); });
  EXPECT_NE(error.find("content goes on after offset 18"), std::string::npos) << error;
}

TEST(Idx, MemoryGrowsWithTheDataNotWithTheClaim) {
  TempDir dir;
  // 7 MiB that do not compress, behind a header that claims 6 GiB: possible for deflate, and below the limit.
  Bytes noise(7u << 20);
  for (std::size_t i = 0; i < noise.size(); ++i) noise[i] = static_cast<std::uint8_t>(philox::word_at({1, 2}, i));
  write_file(dir / "file", gzip(idx_bytes({6u << 10, 1u << 20}, noise)));
  rusage before = {}, after = {};
  getrusage(RUSAGE_SELF, &before);
  const std::string error = error_of([&] { read_idx(dir / "file"); });
  getrusage(RUSAGE_SELF, &after);
  EXPECT_NE(error.find("content ends at offset"), std::string::npos) << error;
  EXPECT_LE(after.ru_maxrss - before.ru_maxrss, 256 * 1024) << "KiB";
}

TEST(Idx, AHeaderThatClaimsMoreThanMaxBytesIsRefused) {
  TempDir dir;
  write_file(dir / "file", gzip(kGood));
  const std::string error = error_of([&] { read_idx(dir / "file", {.max_bytes = 59}); });
  EXPECT_NE(error.find("more than the limit of 59 bytes"), std::string::npos) << error;
  EXPECT_EQ(read_idx(dir / "file", {.max_bytes = 60}).values.size(), 60u);
}

TEST(Idx, PathsThatAreNoFilesAreRefused) {
  TempDir dir;
  EXPECT_NE(error_of([&] { read_idx(dir / "missing"); }).find("No such file"), std::string::npos);
  EXPECT_NE(error_of([&] { read_idx(dir.path()); }).find("is a directory; expected a file"), std::string::npos);
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_NE(error_of([&] { read_idx(dir / "pipe"); }).find("not a regular file"), std::string::npos);
}

TEST(Idx, AnUnreadableFileIsRefused) {
  TempDir dir;
  write_file(dir / "file", kGood);
  std::filesystem::permissions(dir / "file", std::filesystem::perms::none);
  const OrdinaryUser user;
  if (!user) GTEST_SKIP() << "root cannot give up its rights here, and may read every file";
  EXPECT_NE(error_of([&] { read_idx(dir / "file"); }).find("Permission denied"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
