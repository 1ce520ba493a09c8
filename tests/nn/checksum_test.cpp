// Damage to the values of a file that was written here does not pass unnoticed.

#include "lockstep/core/checksum.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <vector>

#include "lockstep/nn/checkpoint.h"
#include "lockstep/nn/nn.h"
#include "lockstep/nn/optim/optim.h"
#include "lockstep/nn/safetensors_header.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::nn {
namespace {

using namespace lockstep::testing;

TEST(Checksum, ChangesWithEveryBitAndWithTheLength) {
  std::vector<unsigned char> bytes(100, 7);
  const std::string whole = checksum_digits(bytes.data(), bytes.size());
  EXPECT_EQ(whole.size(), kChecksumDigits);
  for (std::size_t i = 0; i < 8 * bytes.size(); ++i) {
    bytes[i / 8] ^= static_cast<unsigned char>(1u << i % 8);
    EXPECT_NE(checksum_digits(bytes.data(), bytes.size()), whole) << "bit " << i;
    bytes[i / 8] ^= static_cast<unsigned char>(1u << i % 8);
  }
  bytes.push_back(0);
  EXPECT_NE(checksum_digits(bytes.data(), bytes.size()), whole);
  EXPECT_EQ(checksum_digits(bytes.data(), 100), whole);
  Checksum pieces;
  pieces.update(bytes.data(), 64);
  pieces.update(bytes.data() + 64, 36);
  EXPECT_EQ(fmt::format("{:016x}", pieces.value()), whole);
}

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

class DamagedFile : public ::testing::Test {
 protected:
  DamagedFile() { save_checkpoint(path_.text(), net_, adam_, {.seed = 4711, .step = 3}); }

  TemporaryPath path_;
  Linear net_{3, 2};
  optim::Adam adam_{net_.parameters(), {.lr = 0.25}};
};

TEST_F(DamagedFile, OneFlippedBitAnywhereIsNoticedAndNothingIsLoaded) {
  const std::string good = bytes_of(path_.text());
  Linear other(3, 2);
  optim::Adam adam(other.parameters(), {.lr = 0.5});
  const std::string before = weights_sha256(other);
  const auto refused_with_a_flip_at = [&](std::size_t at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    write_bytes(path_.text(), bad);
    const std::string error = error_of([&] { load_checkpoint(path_.text(), other, adam); });
    EXPECT_EQ(weights_sha256(other), before) << at;
    EXPECT_EQ(adam.lr(), 0.5) << at;
    return error;
  };
  const SafetensorsFile file(path_.text());
  for (const SafetensorsEntry& entry : file.entries())
    for (std::uint64_t at = entry.offset; at < entry.offset + entry.bytes; ++at) {
      const std::string error = refused_with_a_flip_at(static_cast<std::size_t>(at));
      ASSERT_NE(error.find("do not have the checksum that was written with them; the file is damaged"),
                std::string::npos)
          << entry.name << ": " << error;
      ASSERT_NE(error.find("'" + entry.name + "'"), std::string::npos) << error;
    }
  // Numbers that the metadata holds as text.
  for (const char* text : {"4711", "0.25"})
    EXPECT_NE(refused_with_a_flip_at(good.find(text)).find("the header at offset 8 does not have the checksum"),
              std::string::npos);
  write_bytes(path_.text(), good);
  EXPECT_EQ(load_checkpoint(path_.text(), other, adam).seed, 4711u);
}

TEST_F(DamagedFile, NoFlippedBitOfTheHeaderIsAccepted) {
  const std::string good = bytes_of(path_.text());
  const auto header = static_cast<std::size_t>(SafetensorsFile(path_.text()).entries().front().offset);
  const std::size_t text_end = good.rfind('}', header);  // what pads the header says nothing
  std::fstream file(path_.text(), std::ios::binary | std::ios::in | std::ios::out);
  const auto put = [&](std::size_t at, char byte) { file.seekp(static_cast<std::streamoff>(at)).put(byte).flush(); };
  for (std::size_t at = 0; at <= text_end; ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      put(at, static_cast<char>(good[at] ^ (1 << bit)));
      ASSERT_NE(error_of([&] { SafetensorsFile(path_.text()).verify(); }), "") << at << ", bit " << bit;
    }
    put(at, good[at]);
  }
  SafetensorsFile(path_.text()).verify();
}

// Not by a bit, but so that nothing of it is left, or that its length is another.
TEST_F(DamagedFile, ADamagedNameOfTheChecksumsIsNoticed) {
  const std::string good = bytes_of(path_.text()), key = "lockstep.checksums";
  const std::size_t at = good.find(key);
  ASSERT_NE(at, std::string::npos);
  for (const std::string name : {"xxxxxxxxxxxxxxxxxx", "lock\\tep.checksums", "lockstep.........s",
                                 "zzzzzzzzzp.checksums", "                  ", "0123456789abcdef\\n"}) {
    std::string bad = good;
    bad.replace(at, key.size(), name);
    std::uint64_t length = 0;
    std::memcpy(&length, bad.data(), sizeof length);
    length += name.size() - key.size();
    std::memcpy(bad.data(), &length, sizeof length);
    write_bytes(path_.text(), bad);
    const std::string error = error_of([&] { SafetensorsFile file(path_.text()); });
    EXPECT_NE(error.find("was 'lockstep.checksums', the name of the file's checksums; the file is damaged"),
              std::string::npos)
        << name << ": " << error;
  }
}

/// `text` with every `from` replaced.
std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

/// The file as a JSON writer that puts spaces behind colons would write it, after `from` in its header is `to`.
std::string written_anew(const std::string& file, const std::string& from, const std::string& to) {
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), sizeof length);
  std::string header = file.substr(sizeof length, length);
  EXPECT_NE(header.find(from), std::string::npos) << from;
  header = replaced(replaced(header, from, to), "\":", "\": ");
  std::string out(sizeof length, '\0');
  const std::uint64_t now = header.size();
  std::memcpy(out.data(), &now, sizeof now);
  return out + header + file.substr(sizeof length + length);
}

TEST_F(DamagedFile, AHeaderWrittenAnewIsReadIfItSaysTheSame) {
  const std::string good = bytes_of(path_.text());
  const std::size_t key = good.find("\"lockstep.checksums\":\"");
  ASSERT_NE(key, std::string::npos);
  const std::string checksums = good.substr(key + 22, good.find('"', key + 22) - key - 22);
  Linear other(3, 2);
  optim::Adam adam(other.parameters(), {.lr = 0.5});
  const std::string before = weights_sha256(other);
  const auto error_with = [&](const std::string& from, const std::string& to) {
    write_bytes(path_.text(), written_anew(good, from, to));
    return error_of([&] { load_checkpoint(path_.text(), other, adam); });
  };
  struct Change {
    std::string from, to;
  };
  for (const auto& [from, to] : {Change{"4711", "4712"}, {"0.25", "0.26"}, {"\"weight\"", "\"height\""}}) {
    const std::string error = error_with(from, to);
    EXPECT_NE(error.find(path_.text()), std::string::npos) << error;
    EXPECT_NE(error.find("the header at offset 8 does not have the checksum that was written with it; the header is "
                         "damaged; use another copy of the file, or an earlier checkpoint"),
              std::string::npos)
        << from << ": " << error;
  }
  for (const std::string& value : {std::string(), std::string("-1"), checksums.substr(1), checksums + "0",
                                   "g" + checksums.substr(1), " " + checksums.substr(1)}) {
    const std::string error = error_with('"' + checksums + '"', '"' + value + '"');
    EXPECT_NE(error.find(fmt::format("has {} characters, expected {} hexadecimal digits; the header is damaged",
                                     value.size(), checksums.size())),
              std::string::npos)
        << value << ": " << error;
  }
  EXPECT_EQ(weights_sha256(other), before);
  EXPECT_EQ(adam.lr(), 0.5);
  std::string same = written_anew(good, "4711", "4711");
  write_bytes(path_.text(), same);
  EXPECT_EQ(load_checkpoint(path_.text(), other, adam).seed, 4711u);
  EXPECT_EQ(weights_sha256(other), weights_sha256(net_));
  EXPECT_FALSE(SafetensorsFile(path_.text()).metadata().contains("lockstep.checksums"));
  same.back() = static_cast<char>(same.back() ^ 1);
  write_bytes(path_.text(), same);
  EXPECT_NE(error_of([&] { SafetensorsFile(path_.text()).verify(); }).find("the file is damaged"), std::string::npos);
}

TEST_F(DamagedFile, EmptyTensorsDoNotChangeTheHeadersChecksum) {
  // Several of them lie in one place, and an object of JSON has no order that would tell which came first.
  const TensorOptions bytes{.dtype = kUInt8}, doubles{.dtype = kFloat64};
  save_safetensors({{"a", empty({0}, bytes)},
                    {"b", empty({0, 3}, doubles)},
                    {"c", ones({2}, doubles)},
                    {"d", empty({0}, doubles)},
                    {"e", empty({0})},
                    {"f", empty({2, 0})},
                    {"g", ones({3}, bytes)}},
                   path_.text());
  SafetensorsFile(path_.text()).verify();
  EXPECT_EQ(SafetensorsFile(path_.text()).entries().size(), 7u);
}

TEST_F(DamagedFile, FilesWithoutChecksumsAreRead) {
  // As another program would write it: the same tensors, other metadata.
  const std::string header = detail::make_safetensors_header(net_.state(), {{"format", "pt"}});
  std::string bytes = header;
  for (const NamedTensor& t : net_.state())
    bytes.append(static_cast<const char*>(t.tensor.raw_data()), t.tensor.nbytes());
  write_bytes(path_.text(), bytes);
  Linear other(3, 2);
  load(other, path_.text());
  EXPECT_EQ(weights_sha256(other), weights_sha256(net_));
  SafetensorsFile(path_.text()).verify();
}

TEST_F(DamagedFile, ChecksumsAreNoMetadataOfTheUsers) {
  save_safetensors(net_.state(), path_.text(), {{"a", "b"}});
  EXPECT_EQ(SafetensorsFile(path_.text()).metadata(), (Metadata{{"a", "b"}}));
  EXPECT_NE(error_of([&] {
              save_safetensors(net_.state(), path_.text(), {{"lockstep.checksums", ""}});
            }).find("the metadata key 'lockstep.checksums' is taken"),
            std::string::npos);
}

}  // namespace
}  // namespace lockstep::nn
