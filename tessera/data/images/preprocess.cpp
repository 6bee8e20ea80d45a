// SPDX-License-Identifier: Apache-2.0
#include "tessera/data/images/preprocess.h"

#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"
#include "tessera/data/images/decoders.h"
#include "tessera/text/small_file.h"

namespace tessera::data::images {
namespace {

constexpr std::int64_t kLargest = 1 << 14;  // maximum side length after resizing

/// The keys of one preprocessor_config.json.
class Keys {
 public:
  explicit Keys(const std::filesystem::path& path)
      : path_(path.string()), config_(json::parse_strict(text::read_small_file(path), path_)) {
    require(config_.is_object(), "it is not a JSON object");
  }

  /// nullptr if it is absent or null.
  [[nodiscard]] const json::Value* find(const char* key) const {
    const json::Value* value = config_.find(key);
    return value == nullptr || value->is_null() ? nullptr : value;
  }
  [[nodiscard]] bool flag(const char* key, bool absent) const {
    const json::Value* value = find(key);
    return value == nullptr ? absent : value->as_bool();
  }
  [[nodiscard]] double number(const char* key, double absent) const {
    const json::Value* value = find(key);
    return value == nullptr ? absent : value->as_double();
  }
  /// One number per colour, or one for all.
  void colours(const char* key, std::array<double, 3>& out) const {
    const json::Value* value = find(key);
    if (value == nullptr) return;
    if (value->is_number()) {
      out.fill(value->as_double());
      return;
    }
    require(value->items().size() == out.size(),
            fmt::format("\"{}\" has {} numbers in place of 3", key, value->items().size()));
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = value->items()[i].as_double();
  }
  /// 224, {"height": 224, "width": 224} or {"shortest_edge": 224}; the last one is returned as
  /// `edge`.
  [[nodiscard]] std::pair<ImageSize, std::optional<std::int64_t>> size(const char* key,
                                                                       std::int64_t absent) const {
    const json::Value* value = find(key);
    if (value == nullptr) return {{absent, absent}, std::nullopt};
    if (value->is_number()) {
      const std::int64_t side = count(*value, key);
      return {{side, side}, std::nullopt};
    }
    const json::Value *height = value->find("height"), *width = value->find("width"),
                      *edge = value->find("shortest_edge");
    if (height != nullptr && width != nullptr)
      return {{count(*width, key), count(*height, key)}, std::nullopt};
    unsupported(edge != nullptr && value->find("longest_edge") == nullptr, key);
    return {{}, count(*edge, key)};
  }
  void require(bool holds, const std::string& what) const {
    TESSERA_REQUIRE(holds,
                    Format,
                    fmt::format("{}: {}", path_, what),
                    "copy the file again from where the model was published");
  }
  void unsupported(bool harmless, const char* key) const {
    TESSERA_REQUIRE(harmless,
                    Unsupported,
                    fmt::format("{}: \"{}\" is {}, which is not built", path_, key, text(key)),
                    "name another preprocessor_config.json in task.params.preprocessor");
  }

 private:
  [[nodiscard]] std::string text(const char* key) const {
    const json::Value* value = config_.find(key);
    return value == nullptr ? "absent" : value->dump();
  }
  [[nodiscard]] std::int64_t count(const json::Value& value, const char* key) const {
    const std::int64_t out = value.as_integer().value_or(0);
    require(out >= 1 && out <= kLargest,
            fmt::format("\"{}\" says {}: expected 1 to {}", key, value.dump(), kLargest));
    return out;
  }

  std::string path_;
  json::Value config_;
};

/// Scales both sides by one factor, rounded as transformers does.
ImageSize by_shortest_edge(const ImageSize& picture, std::int64_t edge) {
  const bool tall = picture.width <= picture.height;
  const std::int64_t shorter = tall ? picture.width : picture.height,
                     longer = tall ? picture.height : picture.width;
  const std::int64_t other = edge * longer / shorter;
  return tall ? ImageSize{edge, other} : ImageSize{other, edge};
}

ImageSize resized_size(const Preprocessing& how, const ImageSize& picture) {
  if (!how.resize) return picture;
  return how.shortest_edge ? by_shortest_edge(picture, *how.shortest_edge) : how.size;
}

}  // namespace

Preprocessing default_preprocessing(std::int64_t size) {
  return {.size = {size, size}};
}

Preprocessing read_preprocessing(const std::filesystem::path& path) {
  constexpr std::int64_t kDefaultSize = 224;
  const Keys keys(path);
  Preprocessing out;
  for (const char* key :
       {"do_pad", "do_thumbnail", "do_align_long_axis", "do_flip_channel_order", "do_rotate"})
    keys.unsupported(!keys.flag(key, false), key);
  keys.unsupported(keys.find("crop_pct") == nullptr, "crop_pct");
  out.resize = keys.flag("do_resize", true);
  std::tie(out.size, out.shortest_edge) = keys.size("size", kDefaultSize);
  const double resample = keys.number("resample", static_cast<double>(Resample::Bilinear));
  keys.unsupported(!out.resize || resample == 1.0 || resample == 2.0 || resample == 3.0,
                   "resample");
  if (out.resize) out.resample = static_cast<Resample>(resample);
  if (keys.flag("do_center_crop", false)) {
    const auto [crop, edge] = keys.size("crop_size", kDefaultSize);
    keys.unsupported(!edge, "crop_size");
    out.crop = crop;
  }
  out.rescale = keys.flag("do_rescale", true);
  out.factor = keys.number("rescale_factor", out.factor);
  out.normalize = keys.flag("do_normalize", true);
  keys.colours("image_mean", out.mean);
  keys.colours("image_std", out.deviation);
  for (const double deviation : out.deviation)
    keys.require(!out.normalize || deviation != 0.0, "\"image_std\" has a 0");
  return out;
}

std::string preprocessor_config(const Preprocessing& how) {
  using json::Value;
  const auto size_of = [](const ImageSize& size) {
    return Value::object(
        {{"height", Value::integer(size.height)}, {"width", Value::integer(size.width)}});
  };
  const auto colours = [](const std::array<double, 3>& numbers) {
    Value out = Value::array({});
    for (const double number : numbers)
      out.push_back(Value::number(number));
    return out;
  };
  const bool whole = !how.crop && !how.shortest_edge;
  Value out = Value::object(
      {{"image_processor_type", Value::string(whole ? "ViTImageProcessor" : "CLIPImageProcessor")},
       {"do_resize", Value::boolean(how.resize)},
       {"size",
        how.shortest_edge ? Value::object({{"shortest_edge", Value::integer(*how.shortest_edge)}})
                          : size_of(how.size)},
       {"resample", Value::integer(static_cast<std::int64_t>(how.resample))},
       {"do_rescale", Value::boolean(how.rescale)},
       {"rescale_factor", Value::number(how.factor)},
       {"do_normalize", Value::boolean(how.normalize)},
       {"image_mean", colours(how.mean)},
       {"image_std", colours(how.deviation)}});
  if (!whole) out["do_center_crop"] = Value::boolean(how.crop.has_value());
  if (how.crop) out["crop_size"] = size_of(*how.crop);
  return out.dump(2) + "\n";
}

ImageSize preprocessed_size(const Preprocessing& how, const ImageSize& picture) {
  return how.crop ? *how.crop : resized_size(how, picture);
}

void preprocess(const Image& image,
                const Preprocessing& how,
                const std::string& place,
                std::span<float> out) {
  const ImageSize size = resized_size(how, image.size);
  check_size(size, place);
  Image made = size == image.size ? image : resized(image, size, how.resample);
  if (how.crop) {
    const std::int64_t left = (size.width - how.crop->width) / 2,
                       top = (size.height - how.crop->height) / 2;
    TESSERA_REQUIRE(size.width >= how.crop->width && size.height >= how.crop->height,
                    Data,
                    fmt::format("{}: {} x {} pixels are fewer than the crop's {} x {}",
                                place,
                                size.width,
                                size.height,
                                how.crop->width,
                                how.crop->height),
                    "leave the picture out, or resize pictures before they are cropped");
    made = cropped(made, left, top, *how.crop);
  }
  const std::size_t pixels = made.rgb.size() / 3;
  TESSERA_ASSERT(out.size() == made.rgb.size());
  for (std::size_t c = 0; c < 3; ++c) {
    const double factor = how.rescale ? how.factor : 1.0, mean = how.normalize ? how.mean[c] : 0.0,
                 deviation = how.normalize ? how.deviation[c] : 1.0;
    for (std::size_t i = 0; i < pixels; ++i)
      out[c * pixels + i] = static_cast<float>((made.rgb[i * 3 + c] * factor - mean) / deviation);
  }
}

std::string text_of(const Preprocessing& how) {
  const auto numbers = [](const std::array<double, 3>& of) {
    return fmt::format("{} {} {}", of[0], of[1], of[2]);
  };
  std::string out = "as it is";
  if (how.resize) {
    out = how.shortest_edge ? fmt::format("edge {}", *how.shortest_edge)
                            : fmt::format("{} x {}", how.size.width, how.size.height);
    out += fmt::format(" by {}", static_cast<int>(how.resample));
  }
  if (how.crop) out += fmt::format(", crop {} x {}", how.crop->width, how.crop->height);
  if (how.rescale) out += fmt::format(", times {}", how.factor);
  if (how.normalize)
    out += fmt::format(", less {}, through {}", numbers(how.mean), numbers(how.deviation));
  return out;
}

}  // namespace tessera::data::images
