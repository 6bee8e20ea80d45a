// SPDX-License-Identifier: Apache-2.0
// Images as Pillow 13 reads and resizes them (reference_pillow.py), the tensors that models get,
// and files that claim more than they hold.
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/data/images/image.h"
#include "tessera/data/images/preprocess.h"
#include "tessera/data/images/resize.h"

namespace tessera::data::images {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const json::Value& reference() {
  static const json::Value value = [] {
    const fs::path path = tessera::test::source_dir() / "tests/data/reference_pillow.json";
    return json::parse_strict(files::read(path), path.string());
  }();
  return value;
}

std::vector<std::byte> bytes_of(const std::string& hex) {
  std::vector<std::byte> out;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2)
    out.push_back(static_cast<std::byte>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return out;
}
std::vector<std::uint8_t> numbers_of(const std::string& hex) {
  std::vector<std::uint8_t> out;
  for (const std::byte byte : bytes_of(hex))
    out.push_back(std::to_integer<std::uint8_t>(byte));
  return out;
}
std::int64_t number(const json::Value& of, const char* key) {
  return of.find(key)->as_integer().value();
}
ImageSize size_of(const json::Value& pair) {
  return {pair.items()[0].as_integer().value(), pair.items()[1].as_integer().value()};
}

/// The image whose resized versions the reference has.
Image pattern(const ImageSize& size) {
  Image out{size, {}};
  for (std::int64_t y = 0; y < size.height; ++y)
    for (std::int64_t x = 0; x < size.width; ++x)
      for (std::int64_t c = 0; c < 3; ++c)
        out.rgb.push_back(static_cast<std::uint8_t>((x * 37 + y * 59 + c * 101 + x * y * 7) % 256));
  return out;
}

TEST(Images, AreReadAsPillowReadsThem) {
  ASSERT_GE(reference().find("files")->items().size(), 11U);
  for (const json::Value& one : reference().find("files")->items()) {
    const std::string name = one.find("name")->as_string();
    SCOPED_TRACE(name);
    const auto file = bytes_of(one.find("file")->as_string());
    const ImageSize size = {number(one, "width"), number(one, "height")};

    const Image image = decode_image(file, name);

    EXPECT_EQ(read_image_size(file, name), size);
    EXPECT_EQ(image.size, size);
    EXPECT_EQ(image.rgb, numbers_of(one.find("rgb")->as_string()));
  }
}

TEST(Images, AreResizedAsPillowResizesThem) {
  ASSERT_GE(reference().find("resized")->items().size(), 24U);
  for (const json::Value& one : reference().find("resized")->items()) {
    const ImageSize from = size_of(*one.find("from")), to = size_of(*one.find("to"));
    const auto resample = static_cast<Resample>(number(one, "resample"));
    SCOPED_TRACE(testing::Message() << from.width << " x " << from.height << " to " << to.width
                                    << " x " << to.height << " by " << number(one, "resample"));

    const Image image = resized(pattern(from), to, resample);

    EXPECT_EQ(image.size, to);
    EXPECT_EQ(image.rgb, numbers_of(one.find("rgb")->as_string()));
  }
}

std::string refusal_of(const std::vector<std::byte>& file) {
  try {
    (void)decode_image(file, "some.png");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Data);
    return error.what();
  }
  return "nothing was refused";
}

TEST(Images, AreRefusedWhereTheFileEndsEarly) {
  for (const json::Value& one : reference().find("files")->items()) {
    SCOPED_TRACE(one.find("name")->as_string());
    const auto file = bytes_of(one.find("file")->as_string());
    for (const std::size_t length :
         {std::size_t{0}, std::size_t{5}, std::size_t{20}, file.size() / 2})
      EXPECT_THAT(refusal_of({file.begin(), file.begin() + static_cast<std::ptrdiff_t>(length)}),
                  HasSubstr("some.png: "));
  }
}

TEST(Images, WithAnyByteChangedAreReadOrRefused) {
  for (const json::Value& one : reference().find("files")->items()) {
    SCOPED_TRACE(one.find("name")->as_string());
    const auto file = bytes_of(one.find("file")->as_string());
    for (std::size_t at = 0; at < file.size(); ++at) {
      auto changed = file;
      changed[at] ^= std::byte{0x55};
      try {
        const Image image = decode_image(changed, "changed");
        EXPECT_EQ(std::ssize(image.rgb), image.size.width * image.size.height * 3);
      } catch (const Error& error) {
        EXPECT_NE(error.kind(), Error::Kind::Bug);
      }
    }
  }
}

// A header that claims 60,000 x 60,000 pixels, with a correct checksum, and the beginning of the
// data.
TEST(Images, OfMorePixelsThanAreReadAreRefusedByTheirHead) {
  const std::vector<std::byte> file = bytes_of(
      "89504e470d0a1a0a0000000d494844520000ea600000ea6008020000000fb0e2150000000149444154");

  EXPECT_THAT(refusal_of(file), HasSubstr("60000 x 60000 pixels"));
}

TEST(Images, AreKnownByTheirNames) {
  EXPECT_TRUE(is_image_name("a/b.PNG"));
  EXPECT_TRUE(is_image_name("b.jpeg"));
  EXPECT_FALSE(is_image_name("b.txt"));
  EXPECT_FALSE(is_image_name("png"));
}

class PreprocessorConfig : public testing::Test {
 protected:
  Preprocessing read(const std::string& text) const {
    const fs::path path = folder_.path() / "preprocessor_config.json";
    std::ofstream(path, std::ios::binary) << text;
    return read_preprocessing(path);
  }
  Error::Kind refused(const std::string& text) const {
    try {
      (void)read(text);
    } catch (const Error& error) {
      return error.kind();
    }
    return Error::Kind::Bug;
  }
  files::TempDir folder_;
};

TEST_F(PreprocessorConfig, IsWrittenAsItIsRead) {
  const Preprocessing square = default_preprocessing(32);
  const json::Value vit = json::parse(preprocessor_config(square), "test");
  EXPECT_EQ(vit.find("image_processor_type")->as_string(), "ViTImageProcessor");
  EXPECT_EQ(vit.find("size")->dump(), R"({"height":32,"width":32})");
  EXPECT_EQ(vit.find("image_mean")->dump(), "[0.5,0.5,0.5]");
  EXPECT_EQ(vit.find("do_center_crop"), nullptr) << "ViTImageProcessor does not crop";
  EXPECT_EQ(text_of(read(preprocessor_config(square))), text_of(square));

  Preprocessing cropped = square;
  cropped.shortest_edge = 20;
  cropped.resample = Resample::Bicubic;
  cropped.crop = ImageSize{16, 12};
  cropped.mean = {0.1, 0.2, 0.3};
  cropped.factor = 1.0 / 127.5;
  const std::string written = preprocessor_config(cropped);
  EXPECT_EQ(json::parse(written, "test").find("image_processor_type")->as_string(),
            "CLIPImageProcessor");
  EXPECT_EQ(text_of(read(written)), text_of(cropped));
}

// The file of google/vit-base-patch16-224.
TEST_F(PreprocessorConfig, IsReadWithItsOldAndItsNewKeys) {
  const Preprocessing old = read(R"({"do_normalize": true, "do_resize": true,
      "image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.2, 0.1], "resample": 3, "size": 24})");
  EXPECT_EQ(old.size, (ImageSize{24, 24}));
  EXPECT_EQ(old.resample, Resample::Bicubic);
  EXPECT_EQ(old.mean, (std::array<double, 3>{0.5, 0.4, 0.3}));
  EXPECT_EQ(old.deviation, (std::array<double, 3>{0.5, 0.2, 0.1}));
  EXPECT_EQ(old.factor, 1.0 / 255.0);

  const Preprocessing another = read(R"({"size": {"height": 20, "width": 30},
      "do_rescale": false, "do_normalize": false, "rescale_factor": 0.5})");
  EXPECT_EQ(another.size, (ImageSize{30, 20}));
  EXPECT_EQ(another.resample, Resample::Bilinear);
  EXPECT_FALSE(another.rescale);
  EXPECT_FALSE(another.normalize);
}

// 40 x 23: the factor is 8 / 23, and 40 * 8 / 23 is 13.9.
TEST_F(PreprocessorConfig, ResizesByTheShortestEdgeAndCropsTheMiddle) {
  const Preprocessing how = read(R"({"size": {"shortest_edge": 8}, "do_center_crop": true,
      "crop_size": {"height": 6, "width": 8}, "do_rescale": false, "do_normalize": false})");
  EXPECT_EQ(preprocessed_size(how, {40, 23}), (ImageSize{8, 6}));
  const Image source = pattern({40, 23});
  std::vector<float> made(3 * 6 * 8);

  preprocess(source, how, "a picture", made);

  const Image whole = resized(source, {13, 8}, Resample::Bilinear);
  for (std::int64_t c = 0; c < 3; ++c)
    for (std::int64_t y = 0; y < 6; ++y)
      for (std::int64_t x = 0; x < 8; ++x)
        EXPECT_EQ(made[static_cast<std::size_t>((c * 6 + y) * 8 + x)],
                  static_cast<float>(
                      whole.rgb[static_cast<std::size_t>(((y + 1) * 13 + x + 2) * 3 + c)]));
}

TEST_F(PreprocessorConfig, RescalesAndNormalizes) {
  const Preprocessing how = read(R"({"do_resize": false, "rescale_factor": 0.5,
      "image_mean": [1, 2, 3], "image_std": [2, 4, 8]})");
  const Image image{{2, 1}, {10, 20, 30, 40, 50, 60}};
  std::vector<float> made(6);

  preprocess(image, how, "a picture", made);

  EXPECT_EQ(made,
            (std::vector<float>{(5 - 1) / 2.F,
                                (20 - 1) / 2.F,
                                (10 - 2) / 4.F,
                                (25 - 2) / 4.F,
                                (15 - 3) / 8.F,
                                (30 - 3) / 8.F}));
}

TEST_F(PreprocessorConfig, IsRefusedWhereItComputesSomethingElse) {
  using Kind = Error::Kind;
  EXPECT_EQ(refused(R"({"do_pad": true})"), Kind::Unsupported);
  EXPECT_EQ(refused(R"({"crop_pct": 0.9})"), Kind::Unsupported);
  EXPECT_EQ(refused(R"({"resample": 0})"), Kind::Unsupported);
  EXPECT_EQ(refused(R"({"resample": 2.5})"), Kind::Unsupported);
  EXPECT_EQ(refused(R"({"size": {"longest_edge": 8}})"), Kind::Unsupported);
  EXPECT_EQ(refused(R"({"size": 0})"), Kind::Format);
  EXPECT_EQ(refused(R"({"size": 100000000})"), Kind::Format);
  EXPECT_EQ(refused(R"({"size": {"height": -1, "width": 4}})"), Kind::Format);
  EXPECT_EQ(refused(R"({"image_std": [0, 1, 1]})"), Kind::Format);
  EXPECT_EQ(refused(R"({"image_mean": [0, 1]})"), Kind::Format);
  EXPECT_EQ(refused("[]"), Kind::Format);
}

}  // namespace
}  // namespace tessera::data::images
