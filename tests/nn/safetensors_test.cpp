#include "lockstep/nn/safetensors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "lockstep/nn/linear.h"
#include "lockstep/nn/norm.h"
#include "tests/support/golden.h"
#include "tests/support/temporary_path.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::nn {
namespace {

using namespace lockstep::testing;
namespace fs = std::filesystem;

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// A fresh folder, removed afterwards.
class Safetensors : public ::testing::Test {
 protected:
  Safetensors() { fs::create_directory(folder_.text()); }
  std::string path(const std::string& name = "a.safetensors") const { return folder_.text() + "/" + name; }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder_.text()), fs::directory_iterator()));
  }

 private:
  TemporaryPath folder_;
};

const DType kAllDTypes[] = {kFloat64, kFloat32, kFloat16, kBFloat16, kInt64, kInt32, kUInt8, kBool};

TEST_F(Safetensors, EveryDtypeComesBack) {
  std::vector<NamedTensor> tensors;
  for (const DType dtype : kAllDTypes)
    tensors.push_back({std::string(name(dtype)), cast_values(make_input({2, 3}, 1, kFloat64, 0, 200), dtype)});
  tensors.push_back({"scalar", scalar_tensor(2.5)});
  tensors.push_back({"empty", zeros({0, 4})});
  tensors.push_back({"strided", make_strided(make_input({3, 4}))});
  tensors.push_back({"elsewhere", ones({2}, {.device = {kCPU, 1}})});
  save_safetensors(tensors, path(), {{"b", "2"}, {"a", "1 \"ü\""}});
  const SafetensorsFile file(path());
  EXPECT_EQ(file.entries().size(), tensors.size());
  EXPECT_EQ(file.metadata(), (Metadata{{"a", "1 \"ü\""}, {"b", "2"}}));
  for (const NamedTensor& t : tensors) {
    const Tensor read = file.read(t.name);
    EXPECT_EQ(read.dtype(), t.tensor.dtype());
    expect_close(read, move_values(t.tensor, Device()), 0, 0);
    EXPECT_EQ(file.find(t.name)->offset % element_size(t.tensor.dtype()), 0u) << t.name << " is not aligned";
  }
  EXPECT_EQ(file.find("nothing"), nullptr);
  EXPECT_EQ(files(), 1u) << "temporary files must be gone";
}

TEST_F(Safetensors, BytesAreTheFormats) {
  const Tensor f = tensor<float>({1.0f, -2.0f}).as_strided({2, 1}, {1, 1}, 0);
  save_safetensors({{"mask", tensor<bool>({true, false})}, {"w", f}}, path(), {{"k", "v"}});
  std::string expected =
      R"({"__metadata__":{"k":"v","lockstep.checksums":"03173d4a5291b5893b4e2cacb2a900e6790b5201e0ed43f1"},)"
      R"("w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("mask":{"dtype":"BOOL","shape":[2],"data_offsets":[8,10]}})";
  expected.resize((expected.size() + 7) / 8 * 8, ' ');
  const std::string length{static_cast<char>(static_cast<unsigned char>(expected.size())), 0, 0, 0, 0, 0, 0, 0};
  expected = length + expected + std::string("\0\0\x80\x3f\0\0\0\xc0\x01\0", 10);
  EXPECT_EQ(bytes_of(path()), expected);
}

// Written by Python: safetensors.numpy.save({"x": np.arange(3, dtype=np.int32), "y": np.float64(0.5)}, {"who": "py"}).
TEST_F(Safetensors, ReadsPythonsFiles) {
  std::string header = R"({"__metadata__":{"who":"py"},"y":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
                       R"("x":{"dtype":"I32","shape":[3],"data_offsets":[8,20]}})";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::ofstream(path(), std::ios::binary) << static_cast<char>(header.size()) << std::string(7, '\0') << header
                                          << std::string("\0\0\0\0\0\0\xe0\x3f\0\0\0\0\1\0\0\0\2\0\0\0", 20);
  const SafetensorsFile file(path());
  EXPECT_EQ(file.metadata().at("who"), "py");
  EXPECT_EQ(file.read("y").item(), 0.5);
  EXPECT_EQ(file.read("x").to_vector<std::int64_t>(), (std::vector<std::int64_t>{0, 1, 2}));
}

struct Net : Module {
  Linear fc{this, "fc", 3, 2};
  BatchNorm1d norm{this, "norm", 2};
};

TEST_F(Safetensors, ModuleComesBackByName) {
  Net a, b;
  a.norm.num_batches_tracked.data<std::int64_t>()[0] = 5;
  const Tensor handle = b.fc.weight;
  save(a, path());
  b.to(Device(kCPU, 1));
  load(b, path());
  EXPECT_EQ(handle.to_vector<double>(), a.fc.weight.to_vector<double>());
  EXPECT_EQ(b.norm.num_batches_tracked.item<std::int64_t>(), 5);
  EXPECT_EQ(b.device(), Device(kCPU, 1));
  EXPECT_TRUE(handle.requires_grad());
}

TEST_F(Safetensors, LoadingListsAllThatDoesNotFit) {
  Net net;
  const std::vector<double> before = net.fc.bias.to_vector<double>();
  save_safetensors({{"fc.weight", ones({2, 4})},
                    {"fc.bias", ones({2})},
                    {"norm.weight", ones({2}, {.dtype = kFloat64})},
                    {"norm.bias", ones({2})},
                    {"norm.running_mean", ones({2})},
                    {"head.weight", ones({2})}},
                   path());
  const std::string error = error_of([&] { load(net, path()); });
  EXPECT_EQ(error,
            "[nn::load] " + path() + " does not fit " + net.type_name() +
                ": missing norm.running_var, norm.num_batches_tracked; unexpected head.weight; wrong shape or dtype "
                "fc.weight (file: float32 [2, 4], model: float32 [2, 3]), "
                "norm.weight (file: float64 [2], model: float32 [2]);");
  EXPECT_EQ(net.fc.bias.to_vector<double>(), before) << "nothing may be changed";
}

TEST_F(Safetensors, LenientLoadingPassesOverNamesOfOneSide) {
  Net net;
  save_safetensors({{"fc.bias", full({2}, 3.0)}, {"fc.weight", ones({2, 4})}, {"other", ones({1})}}, path());
  const LoadReport report = load(net, path(), {.strict = false});
  EXPECT_EQ(report.missing.size(), 5u);
  EXPECT_EQ(report.unexpected, (std::vector<std::string>{"other"}));
  EXPECT_EQ(report.mismatched, (std::vector<std::string>{"fc.weight (file: float32 [2, 4], model: float32 [2, 3])"}));
  save_safetensors({{"other", ones({1})}}, path("b"));
  EXPECT_NE(error_of([&] { load(net, path("b"), {.strict = false}); }).find("unexpected other"), std::string::npos);
  EXPECT_EQ(net.fc.bias.to_vector<double>(), (std::vector<double>{3, 3}));
}

TEST_F(Safetensors, LongListsAreCutInTheMessage) {
  Net net;
  std::vector<NamedTensor> many;
  for (int i = 0; i < 30; ++i) many.push_back({"extra" + std::to_string(i), ones({1})});
  save_safetensors(many, path());
  EXPECT_NE(error_of([&] { load(net, path()); }).find(" and 20 more;"), std::string::npos);
}

TEST_F(Safetensors, LoadsTheRecordedModel) {
  const SafetensorsFile file(std::string(LOCKSTEP_SOURCE_DIR) + "/tests/golden/model.safetensors");
  for (const auto& [name, tensor] : GoldenFile::open("model").tensors()) expect_close(file.read(name), tensor, 0, 0);
}

TEST_F(Safetensors, ReplacesAFileInOneGo) {
  save_safetensors({{"x", ones({1})}}, path());
  const SafetensorsFile before(path());
  save_safetensors({{"x", full({1}, 2.0)}}, path());
  EXPECT_EQ(before.read("x").item(), 1.0) << "an open file keeps its contents";
  EXPECT_EQ(SafetensorsFile(path()).read("x").item(), 2.0);
  EXPECT_EQ(files(), 1u);
}

TEST_F(Safetensors, AFullDiskLeavesTheOldFileAndNothingElse) {
  save_safetensors({{"x", ones({1})}}, path());
  // A limit on the size of files stands for the disk's end.
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const rlimit small{4096, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of([&] { save_safetensors({{"x", ones({5000})}}, path()); });
  setrlimit(RLIMIT_FSIZE, &old);
  EXPECT_EQ(error, "cannot write " + path() + ": File too large; raise the limit on the size of files (ulimit -f)");
  EXPECT_EQ(SafetensorsFile(path()).read("x").item(), 1.0);
  EXPECT_EQ(files(), 1u);
}

TEST_F(Safetensors, SavingFollowsLinksAndKeepsPermissions) {
  fs::create_directory(path("data"));
  save_safetensors({{"x", ones({1})}}, path("data/real"));
  ASSERT_EQ(::chmod(path("data/real").c_str(), 0600), 0);
  fs::create_symlink("data/real", path("link"));
  save_safetensors({{"x", full({1}, 2.0)}}, path("link"));
  EXPECT_TRUE(fs::is_symlink(path("link")));
  EXPECT_EQ(SafetensorsFile(path("data/real")).read("x").item(), 2.0);
  EXPECT_EQ(fs::status(path("data/real")).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("data/new", path("dangling"));
  save_safetensors({{"x", full({1}, 3.0)}}, path("dangling"));
  EXPECT_EQ(SafetensorsFile(path("data/new")).read("x").item(), 3.0);
  fs::create_symlink("circle", path("circle"));
  EXPECT_NE(error_of([&] {
              save_safetensors({{"x", ones({1})}}, path("circle"));
            }).find("Too many levels"),
            std::string::npos);
}

TEST_F(Safetensors, SavingNeverReplacesWhatIsNoFile) {
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  fs::create_symlink("/dev/null", path("null"));
  for (const char* name : {"pipe", "null"})
    EXPECT_NE(error_of([&] {
                save_safetensors({{"x", ones({1})}}, path(name));
              }).find("a device, pipe or socket"),
              std::string::npos);
  EXPECT_TRUE(fs::is_fifo(path("pipe")));
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_NE(error_of([&] { SafetensorsFile file(path("pipe")); }).find("is a pipe, not a regular file"),
            std::string::npos);
}

TEST_F(Safetensors, SavingRemovesWhatADeadProcessLeft) {
  const std::string file = fs::path(path()).filename().string();
  const std::string victim = path("victim");
  const std::string beside = fs::path(path()).parent_path().string() + "/." + file + ".0123456789abcdef.tmp";
  std::ofstream(beside) << "part of a file";
  std::ofstream(victim) << "another's";
  fs::create_symlink(victim, fs::path(path()).parent_path().string() + "/." + file + ".planted.tmp");
  save_safetensors({{"x", ones({1})}}, path());
  EXPECT_FALSE(fs::exists(beside));
  std::string text;
  std::getline(std::ifstream(victim), text);
  EXPECT_EQ(text, "another's");
  const int writing = ::open(beside.c_str(), O_WRONLY | O_CREAT, 0600);
  ASSERT_EQ(::flock(writing, LOCK_EX), 0);
  save_safetensors({{"x", ones({1})}}, path());
  EXPECT_TRUE(fs::exists(beside)) << "somebody writes it";
  ::close(writing);
}

TEST_F(Safetensors, AHundredThousandTensorsTakeNoTime) {
  std::vector<NamedTensor> tensors;
  const Tensor none = empty({0});
  for (int i = 0; i < 100000; ++i) tensors.push_back({"layer." + std::to_string(i) + ".weight", none});
  const auto start = std::chrono::steady_clock::now();
  save_safetensors(tensors, path());
  const SafetensorsFile file(path());
  for (const NamedTensor& t : tensors) ASSERT_NE(file.find(t.name), nullptr);
  EXPECT_LT(std::chrono::steady_clock::now() - start,
            std::chrono::seconds(20));  // minutes, if keys are searched in line
}

TEST_F(Safetensors, ABoolIsZeroOrOne) {
  struct Masked : Module {
    Parameter weight{this, "weight", zeros({2})};
    Buffer mask{this, "mask", zeros({3}, {.dtype = kBool})};
  } net;
  save_safetensors({{"mask", tensor<bool>({true, false, true})}, {"weight", ones({2})}}, path());
  std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put(2);
  file.close();
  EXPECT_NE(error_of([&] { load(net, path()); }).find("'mask' is BOOL and has the byte 2 at offset"),
            std::string::npos);
  EXPECT_EQ(net.weight.to_vector<double>(), (std::vector<double>{0, 0})) << "nothing may be changed";
}

TEST_F(Safetensors, ATiedTensorIsFoundByAnyOfItsNames) {
  struct Tied : Module {
    Linear in{this, "in", 2, 2, {.bias = false}};
    Parameter out{this, "out", in.weight};
  };
  const Tensor values = make_input({2, 2}, 3, kFloat32), others = make_input({2, 2}, 4, kFloat32);
  const auto loaded = [&](const std::vector<NamedTensor>& tensors) {
    save_safetensors(tensors, path());
    Tied model;
    load(model, path());
    return model.in.weight.to_vector<float>();
  };
  EXPECT_EQ(loaded({{"in.weight", values}}), values.to_vector<float>());
  EXPECT_EQ(loaded({{"out", values}}), values.to_vector<float>());
  EXPECT_EQ(loaded({{"in.weight", values}, {"out", values}}), values.to_vector<float>());
  EXPECT_NE(error_of([&] {
              loaded({{"in.weight", values}, {"out", others}});
            }).find("out (file: not the values of in.weight, with which the model ties it)"),
            std::string::npos);
  EXPECT_NE(error_of([&] { loaded({{"weight", values}}); }).find("missing in.weight"), std::string::npos);
}

TEST_F(Safetensors, SavingErrorsNameThePath) {
  const auto contains = [](const std::string& text, const std::string& part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const std::vector<NamedTensor> one{{"x", ones({1})}};
  contains(error_of([&] { save_safetensors(one, path("no/such/folder")); }), "No such file or directory");
  contains(error_of([&] { save_safetensors(one, path("")); }), "names a folder");
  fs::create_directory(path("folder"));
  contains(error_of([&] { save_safetensors(one, path("folder")); }), "Is a directory");
  contains(error_of([&] { save_safetensors({{"x", ones({1})}, {"x", ones({1})}}, path()); }), "the name 'x' is taken");
  contains(error_of([&] { save_safetensors({{"x", Tensor()}}, path()); }), "tensor 'x' is undefined");
  contains(error_of([&] { save_safetensors({{"__metadata__", ones({1})}}, path()); }), "'__metadata__' is taken");
  contains(error_of([&] { save_safetensors({{"\xff", ones({1})}}, path()); }), "not valid UTF-8");
  EXPECT_EQ(files(), 1u);
}

TEST_F(Safetensors, ReadingErrorsNameFileAndTensor) {
  save_safetensors({{"x", ones({2})}}, path());
  const SafetensorsFile file(path());
  EXPECT_EQ(error_of([&] { file.read("y"); }), "[safetensors] " + path() + " has no tensor 'y'");
  EXPECT_EQ(error_of([&] { file.read_into("x", ones({3})); }),
            "[safetensors] " + path() + ": tensor 'x' is float32 [2], expected float32 [3]");
  const std::uint64_t offset = file.find("x")->offset;
  fs::resize_file(path(), offset + 3);
  EXPECT_EQ(error_of([&] { file.read("x"); }), "[safetensors] " + path() + ": tensor 'x' at offset " +
                                                   std::to_string(offset) +
                                                   " could not be read: the file has become shorter");
}

}  // namespace
}  // namespace lockstep::nn
