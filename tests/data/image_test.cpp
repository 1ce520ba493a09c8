#include "lockstep/data/image.h"

#include <zlib.h>

#include <algorithm>

#include "lockstep/data/image_folder.h"
#include "tests/support/data_files.h"
#include "tests/support/tensor_testing.h"

namespace lockstep::testing {
namespace {

using namespace lockstep::data;  // NOLINT

Image image_of(std::int64_t height, std::int64_t width, int channels, int step = 7) {
  return {.height = height,
          .width = width,
          .channels = channels,
          .pixels = ramp(static_cast<std::size_t>(height * width * channels), 256, step)};
}

Image solid(std::int64_t height, std::int64_t width, const Bytes& colour) {
  Image image{.height = height, .width = width, .channels = static_cast<int>(colour.size()), .pixels = {}};
  for (std::int64_t i = 0; i < height * width; ++i)
    image.pixels.insert(image.pixels.end(), colour.begin(), colour.end());
  return image;
}

TEST(Image, PngIsReadExactly) {
  TempDir dir;
  for (const int channels : {1, 2, 3, 4}) {
    const Image image = image_of(5, 9, channels);
    write_png(dir / "image.png", image);
    const Image read = load_image(dir / "image.png");
    EXPECT_EQ(read.height, 5);
    EXPECT_EQ(read.width, 9);
    EXPECT_EQ(read.channels, channels);
    EXPECT_EQ(read.pixels, image.pixels);
  }
}

TEST(Image, JpegIsReadClosely) {
  TempDir dir;
  write_jpeg(dir / "image", solid(17, 33, {200, 100, 50}));
  const Image read = load_image(dir / "image");
  ASSERT_EQ(read.pixels.size(), std::size_t{17 * 33 * 3});
  for (std::size_t i = 0; i < read.pixels.size(); ++i) ASSERT_NEAR(read.pixels[i], (Bytes{200, 100, 50}[i % 3]), 4);
}

TEST(Image, ChannelsAreConverted) {
  TempDir dir;
  write_png(dir / "grey.png", solid(2, 2, {90}));
  write_png(dir / "colour.png", solid(2, 2, {90, 90, 90}));
  EXPECT_EQ(load_image(dir / "grey.png", 3).pixels, Bytes(12, 90));
  EXPECT_EQ(load_image(dir / "colour.png", 1).pixels, Bytes(4, 90));
  EXPECT_EQ(load_image(dir / "grey.png", 4).pixels[3], 255);
  EXPECT_NE(
      error_of([&] { load_image(dir / "grey.png", 5); }).find("channels must be 0 (as stored), 1, 3 or 4, found 5"),
      std::string::npos);
}

TEST(Image, GreyWeighsTheColours) {
  EXPECT_EQ(to_grey(solid(1, 1, {255, 0, 0})).pixels, Bytes{76});
  EXPECT_EQ(to_grey(solid(1, 1, {0, 255, 0, 9})).pixels, Bytes{150});
  EXPECT_EQ(to_grey(solid(1, 1, {0, 0, 255})).pixels, Bytes{29});
  EXPECT_EQ(to_grey(solid(1, 2, {77, 3})).pixels, (Bytes{77, 77}));
}

TEST(Image, ResizingKeepsWhatItCan) {
  const Image image = image_of(6, 4, 3);
  EXPECT_EQ(resize_area(image, 6, 4).pixels, image.pixels);
  EXPECT_EQ(resize_bilinear(image, 6, 4).pixels, image.pixels);
  for (const Image& resized :
       {resize_area(solid(50, 31, {9, 200}), 7, 5), resize_bilinear(solid(5, 3, {9, 200}), 41, 8)}) {
    for (std::size_t i = 0; i < resized.pixels.size(); ++i) ASSERT_EQ(resized.pixels[i], i % 2 == 0 ? 9 : 200);
  }
}

TEST(Image, AreaAveragesBilinearInterpolates) {
  const Image row{.height = 1, .width = 4, .channels = 1, .pixels = {0, 100, 200, 60}};
  EXPECT_EQ(resize_area(row, 1, 2).pixels, (Bytes{50, 130}));
  // Thirds: (0 + 100 / 3) / (4 / 3), (200 / 3 + 400 / 3) / (4 / 3), (200 / 3 + 60) / (4 / 3).
  EXPECT_EQ(resize_area(row, 1, 3).pixels, (Bytes{25, 150, 95}));
  const Image pair{.height = 1, .width = 2, .channels = 1, .pixels = {0, 100}};
  EXPECT_EQ(resize_bilinear(pair, 1, 4).pixels, (Bytes{0, 25, 75, 100}));
  EXPECT_NE(error_of([&] { resize_area(pair, 0, 4); }).find("found 0 x 4"), std::string::npos);
  EXPECT_NE(error_of([&] { resize_area({}, 2, 4); }).find("0 x 0 pixels"), std::string::npos);
}

// --- bad files ------------------------------------------------------------------------------------------------------

void append(Bytes& bytes, std::uint32_t word) {
  for (const int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<std::uint8_t>(word >> shift));
}

Bytes png_chunk(const std::string& type, const Bytes& body) {
  Bytes tagged(type.begin(), type.end());
  tagged.insert(tagged.end(), body.begin(), body.end());
  Bytes chunk;
  append(chunk, static_cast<std::uint32_t>(body.size()));
  chunk.insert(chunk.end(), tagged.begin(), tagged.end());
  append(chunk, static_cast<std::uint32_t>(crc32(0, tagged.data(), static_cast<uInt>(tagged.size()))));
  return chunk;
}

Bytes zlib_of(const Bytes& content) {
  uLongf packed_size = compressBound(static_cast<uLong>(content.size()));
  Bytes packed(packed_size);
  compress(packed.data(), &packed_size, content.data(), static_cast<uLong>(content.size()));
  packed.resize(packed_size);
  return packed;
}

/// A grey 8-bit PNG whose header claims width x height and whose image data is `packed`.
Bytes png_of(std::uint32_t width, std::uint32_t height, const Bytes& packed) {
  Bytes file = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  Bytes header;
  append(header, width);
  append(header, height);
  for (const int field : {8, 0, 0, 0, 0}) header.push_back(static_cast<std::uint8_t>(field));
  for (const Bytes& chunk : {png_chunk("IHDR", header), png_chunk("IDAT", packed), png_chunk("IEND", {})})
    file.insert(file.end(), chunk.begin(), chunk.end());
  return file;
}

/// The same with `content`, compressed.
Bytes png_claiming(std::uint32_t width, std::uint32_t height, const Bytes& content) {
  return png_of(width, height, zlib_of(content));
}

TEST(Image, BadFilesAreRefusedByName) {
  TempDir dir;
  write_png(dir / "good.png", image_of(30, 30, 3));
  write_jpeg(dir / "good.jpg", image_of(64, 64, 3));
  const Bytes png = read_file(dir / "good.png");
  const Bytes jpeg = read_file(dir / "good.jpg");
  Bytes flipped = png;
  flipped[60] ^= 0xff;
  Bytes packed = zlib_of(Bytes(110));
  packed.back() ^= 1;
  const Bytes wrong_adler = png_of(10, 10, packed);
  struct Case {
    const char* name;
    Bytes bytes;
    const char* message;
  };
  const std::vector<Case> cases = {{"empty.png", {}, "no PNG or JPEG file: its 0 bytes"},
                                   {"text.png", {'h', 'i'}, "no PNG or JPEG file"},
                                   {"packed.png", gzip(png), "is gzip data; expected a PNG or JPEG"},
                                   {"cut.png", Bytes(png.begin(), png.begin() + 80), "damaged or cut short"},
                                   {"mark_only.png", Bytes(png.begin(), png.begin() + 8), "the header cannot be read"},
                                   {"flipped.png", flipped, "damaged: the CRC-32 of the chunk at offset"},
                                   {"adler.png", wrong_adler, "damaged: incorrect data check"},
                                   {"cut.jpg", Bytes(jpeg.begin(), jpeg.begin() + 100), ""},
                                   {"vast.png", png_claiming(1u << 24, 1u << 24, Bytes(10)), ""},
                                   {"wide.png", png_claiming(20000, 10, Bytes(10)),
                                    "10 x 20000 pixels (height x width); expected sides of 1 to 16384"},
                                   {"many.png", png_claiming(16000, 16000, Bytes(10)), "at most 67108864 pixels"},
                                   {"flat.png", png_claiming(0, 10, Bytes(10)), ""},
                                   {"short.png", png_claiming(100, 100, Bytes(200)), "damaged or cut short"},
                                   {"bomb.png", png_claiming(10, 10, Bytes(200u << 20)),
                                    "unfolds to more than the 110 bytes that its header asks for"}};
  for (const Case& c : cases) {
    write_file(dir / c.name, c.bytes);
    const std::string error = error_of([&] { load_image(dir / c.name); });
    EXPECT_NE(error.find(c.message), std::string::npos) << error;
    EXPECT_NE(error.find(c.name), std::string::npos) << error;
  }
  EXPECT_NE(error_of([&] { load_image(dir / "missing.png"); }).find("No such file"), std::string::npos);
  EXPECT_NE(error_of([&] { load_image(dir.path()); }).find("is a directory"), std::string::npos);
  EXPECT_NE(error_of([&] { load_image(dir / "good.png", 0, {.max_file_bytes = 20}); }).find("expected at most 20"),
            std::string::npos);
}

TEST(Image, DamageNeverEscapes) {
  // Any single damaged byte of a PNG is found, of a JPEG gives an image or an Error, within bounds (the sanitizers
  // watch).
  TempDir dir;
  write_png(dir / "image.png", image_of(9, 9, 3, 31));
  write_jpeg(dir / "image.jpg", image_of(16, 16, 3, 31));
  for (const char* name : {"image.png", "image.jpg"}) {
    const Bytes good = read_file(dir / name);
    for (std::size_t at = 0; at < good.size(); ++at) {
      Bytes damaged = good;
      damaged[at] ^= 0x55;
      try {
        const Image image = decode_image(damaged, name);
        EXPECT_STREQ(name, "image.jpg") << "byte " << at;
        EXPECT_EQ(image.pixels.size(), static_cast<std::size_t>(image.height * image.width * image.channels));
      } catch (const Error&) {
      }
    }
  }
}

// --- folders of images ----------------------------------------------------------------------------------------------

Batch batch_of(const Dataset& dataset, const std::vector<std::int64_t>& indices) {
  return dataset.get_batch(indices);
}

TEST(ImageFolder, SortsClassesAndFiles) {
  TempDir dir;
  write_png(dir / "dog/2.PNG", solid(4, 6, {30, 60, 90}));
  write_png(dir / "dog/1.png", solid(4, 6, {0, 51, 255}));
  write_jpeg(dir / "cat/x.jpeg", solid(4, 6, {100, 100, 100}));
  write_file(dir / "cat/notes.txt", {'x'});
  write_file(dir / "README", {'x'});
  const ImageFolder set(dir.path());
  EXPECT_EQ(set.classes(), (std::vector<std::string>{"cat", "dog"}));
  ASSERT_EQ(set.size(), 3);
  EXPECT_EQ(set.path(1), dir / "dog/1.png");
  EXPECT_EQ(set.label(0), 0);
  const Batch batch = batch_of(set, {1, 2});
  EXPECT_EQ(batch.x.sizes(), (Shape{2, 3, 4, 6}));
  EXPECT_EQ(batch.y.to_vector<std::int64_t>(), (std::vector<std::int64_t>{1, 1}));
  const std::vector<float> x = batch.x.to_vector<float>();
  EXPECT_FLOAT_EQ(x[0], 0.0f);
  EXPECT_FLOAT_EQ(x[24], 0.2f);
  EXPECT_FLOAT_EQ(x[48], 1.0f);
  EXPECT_FLOAT_EQ(x[72], 30.0f / 255.0f);
  EXPECT_EQ(batch_of(set, {}).x.sizes(), (Shape{0, 3, 4, 6}));
}

TEST(ImageFolder, TellsItsContentFromOthers) {
  TempDir here, there;
  for (const TempDir* const dir : {&here, &there}) {
    write_png(*dir / "cat/1.png", solid(4, 6, {30, 60, 90}));
    write_png(*dir / "dog/1.png", solid(4, 6, {0, 51, 255}));
  }
  const ImageFolder set(here.path());
  EXPECT_EQ(set.content(), ImageFolder(there.path()).content());
  EXPECT_NE(set.content(), ImageFolder(there.path(), {.mean = {0.1f}, .std = {0.5f}}).content());
  std::filesystem::rename(there / "dog/1.png", there / "dog/2.png");
  EXPECT_NE(set.content(), ImageFolder(there.path()).content());
  const std::string before = set.content();
  std::ofstream(here / "dog/1.png", std::ios::app) << "longer";
  EXPECT_NE(set.content(), before);
}

TEST(ImageFolder, ResizesAndNormalises) {
  TempDir dir;
  write_png(dir / "a/big.png", solid(40, 60, {51}));
  write_png(dir / "a/small.png", solid(3, 100, {102, 102, 102}));
  const ImageFolder set(dir.path(), {.height = 8, .width = 8, .channels = 1, .mean = {0.1f}, .std = {0.5f}});
  const Batch batch = batch_of(set, {0, 1});
  EXPECT_EQ(batch.x.sizes(), (Shape{2, 1, 8, 8}));
  const std::vector<float> x = batch.x.to_vector<float>();
  for (std::size_t i = 0; i < 64; ++i) {
    ASSERT_NEAR(x[i], (0.2 - 0.1) / 0.5, 1e-6);
    ASSERT_NEAR(x[64 + i], (0.4 - 0.1) / 0.5, 1e-6);
  }
}

TEST(ImageFolder, RefusesWhatItCannotUse) {
  TempDir dir;
  const auto error = [&](ImageFolderOptions options = {}) {
    return error_of([&] { ImageFolder(dir / "set", options); });
  };
  EXPECT_NE(error().find("cannot list '" + (dir / "set").string() + "': No such file"), std::string::npos) << error();
  std::filesystem::create_directories(dir / "set");
  EXPECT_NE(error().find("has no sub-directories; expected one for each class"), std::string::npos) << error();
  std::filesystem::create_directories(dir / "set/a");
  EXPECT_NE(error().find("set/a' holds no .png, .jpg or .jpeg file"), std::string::npos) << error();
  write_png(dir / "set/a/1.png", solid(4, 4, {1}));
  write_png(dir / "set/a/2.png", solid(5, 4, {1}));
  write_file(dir / "set/a/3.png", {'x'});
  EXPECT_NE(error({.channels = 2}).find("channels must be 1, 3 or 4, found 2"), std::string::npos);
  EXPECT_NE(error({.height = 5}).find("5 x 0; expected both 0"), std::string::npos);
  EXPECT_NE(error({.mean = {0.f, 0.f}, .std = {1.f, 1.f}}).find("mean has 2 values"), std::string::npos);
  EXPECT_NE(error({.mean = {0.f}, .std = {-1.f}}).find("std must be above 0, found -1"), std::string::npos);
  const ImageFolder set(dir / "set");
  EXPECT_NE(error_of([&] { batch_of(set, {1}); }).find("2.png' has 5 x 4 pixels, the first image 4 x 4"),
            std::string::npos);
  EXPECT_NE(error_of([&] { batch_of(set, {2}); }).find("3.png' is no PNG or JPEG"), std::string::npos);
  EXPECT_NE(error_of([&] { set.path(3); }).find("index 3 is out of range"), std::string::npos);
}

TEST(ImageFolder, AnUnreadableDirectoryIsRefused) {
  TempDir dir;
  write_png(dir / "set/a/1.png", solid(4, 4, {1}));
  std::filesystem::permissions(dir / "set", std::filesystem::perms::none);
  const OrdinaryUser user;
  if (!user) GTEST_SKIP() << "root cannot give up its rights here, and may read every folder";
  EXPECT_NE(error_of([&] { ImageFolder(dir / "set"); }).find("Permission denied"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::testing
