#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "lockstep/core/allocator.h"
#include "lockstep/nn/safetensors.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::nn {
namespace {

using namespace lockstep::testing;

std::string with_length(std::uint64_t length, const std::string& rest) {
  std::string out(8, '\0');
  std::memcpy(out.data(), &length, 8);
  return out + rest;
}
std::string with_header(const std::string& header, std::size_t data_bytes = 0) {
  return with_length(header.size(), header + std::string(data_bytes, '\0'));
}
std::string one_tensor(const std::string& fields, std::size_t data_bytes = 8) {
  return with_header(R"({"x":{)" + fields + "}}", data_bytes);
}

struct BadFile {
  const char* name;
  std::string content;
  const char* message;
  friend std::ostream& operator<<(std::ostream& out, const BadFile& f) { return out << f.name; }
};

const char* kGood =
    R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"U8","shape":[3],"data_offsets":)";

const BadFile kBadFiles[] = {
    {"Empty", "", "has 0 bytes, too few for the header's length at offset 0"},
    {"SevenBytes", "1234567", "has 7 bytes, too few"},
    {"HugeHeader", with_length(1ull << 60, "{}"),
     "offset 0 claims a header of 1152921504606846976 bytes, expected at most 16000000"},
    {"AllOnes", std::string(64, '\xff'), "claims a header of 18446744073709551615 bytes"},
    {"HeaderCutShort", with_length(100, "{}"),
     "claims a header of 100 bytes, but only 2 follow; the file is cut short"},
    {"NotJson", with_header("hello"), "the header at offset 8 is not valid JSON, at offset 9"},
    {"CutJson", with_header(R"({"x":{"dtype":)"), "is not valid JSON"},
    {"BadUtf8", with_header("{\"\xff\":1}"), "is not valid JSON"},
    {"NumberOutOfRange", with_header("{\"x\":1e999}"), "holds a number too large for any number of JSON"},
    {"EmptyHeader", with_header(""), "is not valid JSON"},
    {"NotAnObject", with_header("[1, 2]"), "is JSON but not an object"},
    {"Null", with_header("null"), "is JSON but not an object"},
    {"DeepNesting", with_header(std::string(100000, '[')),
     "is nested too deeply at offset 40; expected at most 32 levels"},
    {"EntryNotAnObject", with_header(R"({"x":3})"), "tensor 'x' in the header at offset 8: expected dtype, shape"},
    {"NoDtype", one_tensor(R"("shape":[2],"data_offsets":[0,8])"), "expected dtype, shape and two data_offsets"},
    {"NoShape", one_tensor(R"("dtype":"F32","data_offsets":[0,8])"), "expected dtype, shape and two data_offsets"},
    {"ThreeOffsets", one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,9])"), "two data_offsets"},
    {"UnknownDtype", one_tensor(R"("dtype":"F8_E4M3","shape":[8],"data_offsets":[0,8])"),
     "dtype F8_E4M3 is not supported"},
    {"NegativeSize", one_tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), "not a whole number >= 0"},
    {"FractionalSize", one_tensor(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), "not a whole number >= 0"},
    {"NegativeOffset", one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[-8,0])"),
     "data_offsets are not whole numbers"},
    {"SizesOverflow", one_tensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,8])"),
     "more than 2^63 elements"},
    {"OneSizeOverflows", one_tensor(R"("dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8])"),
     "more than 2^63 elements"},
    {"SizesOverflowBesideZero",
     one_tensor(R"("dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0])", 0),
     "more than 2^63 elements"},
    {"NineDimensions", one_tensor(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,2],"data_offsets":[0,8])"),
     "9 dimensions, expected at most 8"},
    {"EndPastTheFile", one_tensor(R"("dtype":"F32","shape":[4],"data_offsets":[0,16])"),
     "data_offsets [0, 16] lie outside the 8 bytes of data that follow at offset"},
    {"BeginPastEnd", one_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"),
     "data_offsets [8, 0] lie outside"},
    {"WrongByteCount", one_tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"),
     "data_offsets [0, 8] hold 8 bytes, but F32 of shape [3] needs 12"},
    {"AbsurdSize", one_tensor(R"("dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000])"),
     "lie outside the 8 bytes"},
    {"Overlap", with_header(std::string(kGood) + "[5,8]}}", 8), "tensor 'b' overlaps the one before it at offset"},
    {"SameBytesTwice",
     with_header(
         R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})",
         3),
     "overlaps the one before it"},
    {"Gap", with_header(std::string(kGood) + "[9,12]}}", 12), "the 1 bytes at offset"},
    {"BytesAtTheEnd", with_header(std::string(kGood) + "[8,11]}}", 15), "the 4 bytes from offset"},
    {"CutData", with_header(std::string(kGood) + "[8,11]}}", 10), "data_offsets [8, 11] lie outside the 10 bytes"},
    {"NameTwice",
     with_header(
         R"({"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})"),
     "has 'x' twice"},
    {"FieldTwice", one_tensor(R"("dtype":"F32","dtype":"F64","shape":[2],"data_offsets":[0,8])"), "has 'dtype' twice"},
    {"AnArchiveOfTorch", std::string("PK\x03\x04\0\0\x08\x08\0\0data.pkl", 18),
     "so it is an archive of torch.save(), expected a safetensors file; convert it in Python"},
    {"MetadataNotAnObject", with_header(R"({"__metadata__":[1]})"),
     "__metadata__ in the header at offset 8 is not an object"},
    {"MetadataNotText", with_header(R"({"__metadata__":{"k":1}})"),
     "__metadata__ 'k' in the header at offset 8 is not a string"},
};

class BadSafetensors : public ::testing::TestWithParam<BadFile> {};
INSTANTIATE_TEST_SUITE_P(Files, BadSafetensors, ::testing::ValuesIn(kBadFiles),
                         [](const auto& info) { return info.param.name; });

TEST_P(BadSafetensors, OneClearLineAndNoMemory) {
  const TemporaryPath path;
  std::ofstream(path.text(), std::ios::binary) << GetParam().content;
  const std::size_t peak_before = [] {
    allocator(kCPU).reset_peak(Device());
    return allocator(kCPU).stats(Device()).peak;
  }();
  const std::string error = error_of([&] { SafetensorsFile file(path.text()); });
  EXPECT_TRUE(error.starts_with("[safetensors] " + path.text())) << error;
  EXPECT_NE(error.find(GetParam().message), std::string::npos) << error;
  EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  EXPECT_LT(error.size(), 400u) << error;
  EXPECT_EQ(allocator(kCPU).stats(Device()).peak, peak_before);
}

// Every prefix of a good file is refused; none crashes.
TEST(BadSafetensors, EveryTruncationIsRefused) {
  const TemporaryPath path;
  save_safetensors({{"a", make_input({3, 2})}, {"b", ones({2})}}, path.text(), {{"k", "v"}});
  const auto size = static_cast<std::int64_t>(std::filesystem::file_size(path.text()));
  for (std::int64_t length = size - 1; length >= 0; --length) {
    std::filesystem::resize_file(path.text(), static_cast<std::uintmax_t>(length));
    EXPECT_FALSE(error_of([&] { SafetensorsFile file(path.text()); }).empty()) << length;
  }
}

// Every flipped bit of the header either is refused or leaves a file that can be read in full.
TEST(BadSafetensors, FlippedBitsNeverCrash) {
  const TemporaryPath path;
  save_safetensors({{"a", make_input({3, 2})}, {"b", ones({2}, {.dtype = kBool})}}, path.text(), {{"k", "v"}});
  std::string content;
  {
    std::ifstream in(path.text(), std::ios::binary);
    content.assign(std::istreambuf_iterator<char>(in), {});
  }
  const std::size_t header_end = 8 + static_cast<unsigned char>(content[0]);
  int refused = 0;
  for (std::size_t byte = 0; byte < header_end; ++byte)
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = content;
      changed[byte] = static_cast<char>(changed[byte] ^ (1 << bit));
      std::ofstream(path.text(), std::ios::binary | std::ios::trunc) << changed;
      try {
        const SafetensorsFile file(path.text());
        for (const SafetensorsEntry& entry : file.entries()) EXPECT_EQ(file.read(entry.name).sizes(), entry.shape);
      } catch (const Error&) {
        ++refused;
      }
    }
  EXPECT_GT(refused, 500);
}

TEST(BadSafetensors, FilesThatCannotBeOpened) {
  EXPECT_EQ(error_of([] { SafetensorsFile file("/no/such/file"); }),
            "[safetensors] cannot open '/no/such/file': No such file or directory; check the path and its permissions");
  EXPECT_EQ(error_of([] { SafetensorsFile file("/"); }), "[safetensors] '/' is a directory; expected a file");
}

}  // namespace
}  // namespace lockstep::nn
