// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/foreign.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/json_cursor.h"
#include "tessera/checkpoint/safetensors_header.h"

namespace tessera::interop {

namespace fs = std::filesystem;

Registry<ForeignFormat>& foreign_formats() {
  static Registry<ForeignFormat> formats("format of checkpoints");
  return formats;
}

std::optional<Foreign> open_foreign(const fs::path& path, std::string_view only) {
  for (const std::string& name : foreign_formats().names()) {
    if (!only.empty() && name != only) continue;
    const ForeignFormat& format = foreign_formats().get(name);
    if (format.recognises(path)) return format.open(path);
  }
  return std::nullopt;
}

bool is_foreign(const fs::path& path) {
  const auto names = foreign_formats().names();
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return foreign_formats().get(name).recognises(path);
  });
}

void require_every_element(const Weight& weight, const std::string& what) {
  for (std::size_t d = 0; d < weight.shape.size(); ++d) {
    TESSERA_REQUIRE(weight.strides[d] != 0 || weight.shape[d] <= 1,
                    Format,
                    fmt::format("{}: {} is a view that repeats its elements",
                                what,
                                checkpoint::JsonCursor::shown(weight.name)),
                    "no checkpoint is written so: copy all of its files again");
  }
}

checkpoint::StreamedTensor join(std::string name,
                                std::vector<std::int64_t> shape,
                                std::vector<Run> runs,
                                const std::string& what) {
  const auto refuse = [&](const std::string& how) {
    throw Error(Error::Kind::Format,
                fmt::format("{}: tensor {} {}", what, checkpoint::JsonCursor::shown(name), how),
                "the checkpoint is damaged or incomplete: copy all of its files again");
  };
  const std::int64_t numel = checkpoint::checked_numel(shape);
  if (numel < 0) refuse(fmt::format("has a shape [{}] that overflows", fmt::join(shape, ", ")));
  std::erase_if(runs, [](const Run& run) { return run.count == 0; });
  std::int64_t held = 0;
  for (const Run& run : runs) {
    if (run.begin < 0 || run.count < 0 || run.count > run.weight.numel() ||
        run.begin > run.weight.numel() - run.count) {
      refuse(fmt::format("wants {} elements from element {} on of {}, which has {}",
                         run.count,
                         run.begin,
                         checkpoint::JsonCursor::shown(run.weight.name),
                         run.weight.numel()));
    }
    if (run.weight.dtype != runs.front().weight.dtype) refuse("is kept in two types");
    require_every_element(run.weight, what);
    if (run.count > numel - held)
      refuse(fmt::format("has more than the {} elements of [{}]", numel, fmt::join(shape, ", ")));
    held += run.count;
  }
  if (held != numel)
    refuse(fmt::format("has {} of the {} elements of [{}]", held, numel, fmt::join(shape, ", ")));
  const DType dtype = runs.empty() ? DType::F32 : runs.front().weight.dtype;
  const auto kept = std::make_shared<const std::vector<Run>>(std::move(runs));
  const auto read = [kept](std::int64_t begin, std::int64_t end, std::byte* out) {
    std::int64_t first = 0;  // first element of the run within the tensor
    for (const Run& run : *kept) {
      const std::int64_t from = std::max(begin, first), to = std::min(end, first + run.count);
      if (from < to) {
        run.weight.copy(run.begin + from - first, run.begin + to - first, out);
        out += static_cast<std::size_t>(to - from) * size_of(run.weight.dtype);
      }
      first += run.count;
    }
  };
  const auto release = [kept] {
    for (const Run& run : *kept)
      run.weight.release(run.begin, run.begin + run.count);
  };
  return {std::move(name), dtype, std::move(shape), read, {}, release};
}

checkpoint::StreamedTensor concatenate(std::string name,
                                       const std::vector<std::int64_t>& shape,
                                       std::size_t dim,
                                       std::vector<Weight> parts,
                                       std::vector<std::int64_t> to,
                                       const std::string& what) {
  const auto refuse = [&](const std::string& how) {
    throw Error(Error::Kind::Format,
                fmt::format("{}: tensor {} {}", what, checkpoint::JsonCursor::shown(name), how),
                "the checkpoint is damaged or incomplete: copy all of its files again");
  };
  if (checkpoint::checked_numel(shape) < 0 ||
      checkpoint::checked_numel(shape) != checkpoint::checked_numel(to) || parts.empty())
    refuse(fmt::format("has a shape [{}] that cannot be", fmt::join(shape, ", ")));
  std::int64_t held = 0, inner = 1;  // inner: number of elements per index of `dim`
  for (std::size_t d = dim + 1; d < shape.size(); ++d)
    inner *= shape[d];
  for (const Weight& part : parts) {
    bool fits = part.shape.size() == shape.size() && part.dtype == parts.front().dtype;
    for (std::size_t d = 0; fits && d < shape.size(); ++d)
      fits = d == dim || part.shape[d] == shape[d];
    if (!fits) {
      refuse(fmt::format("is [{}] in {}, which is not part of [{}]",
                         fmt::join(part.shape, ", "),
                         part.file.string(),
                         fmt::join(shape, ", ")));
    }
    if (part.shape[dim] > shape[dim] - held)
      refuse(fmt::format("has more than {} along dim {}", shape[dim], dim));
    held += part.shape[dim];
  }
  if (held != shape[dim]) refuse(fmt::format("has {} of {} along dim {}", held, shape[dim], dim));
  const DType dtype = parts.front().dtype;
  const auto kept = std::make_shared<const std::vector<Weight>>(std::move(parts));
  const auto release = [kept] {
    for (const Weight& part : *kept)
      part.release();
  };
  const auto read = [kept,
                     release,
                     dim,
                     inner,
                     row = held * inner,
                     width = size_of(dtype),
                     numel = checkpoint::checked_numel(shape)](
                        std::int64_t begin, std::int64_t end, std::byte* out) {
    for (std::int64_t at = begin; at < end;) {
      const std::int64_t outer = at / row;
      std::int64_t first = outer * row;
      for (const Weight& part : *kept) {
        const std::int64_t block = part.shape[dim] * inner;
        const std::int64_t from = std::max(at, first), to_end = std::min(end, first + block);
        if (from < to_end) {
          const std::int64_t shift = outer * block - first;
          part.copy(from + shift, to_end + shift, out);
          out += static_cast<std::size_t>(to_end - from) * width;
        }
        first += block;
      }
      at = std::min(end, (outer + 1) * row);
    }
    if (end == numel) release();
  };
  return {std::move(name), dtype, std::move(to), read, {}, release};
}

Weight transposed(Weight matrix) {
  TESSERA_ASSERT(matrix.shape.size() == 2);
  std::swap(matrix.shape[0], matrix.shape[1]);
  std::swap(matrix.strides[0], matrix.strides[1]);
  return matrix;
}

ConsumedWeights::ConsumedWeights(std::vector<Weight> weights, std::string what)
    : named_(std::move(weights)), what_(std::move(what)) {}

const Weight& ConsumedWeights::take(const std::string& name,
                                    const std::vector<std::int64_t>& shape) {
  const Weight* found = named_.find(name);
  TESSERA_REQUIRE(found != nullptr,
                  Format,
                  fmt::format("{}: has no tensor {}", what_, checkpoint::JsonCursor::shown(name)),
                  "the checkpoint is incomplete, or of another model than this reader knows");
  TESSERA_REQUIRE(found->shape == shape,
                  Format,
                  fmt::format("{}: tensor {} is [{}], and [{}] fits the rest",
                              what_,
                              checkpoint::JsonCursor::shown(name),
                              fmt::join(found->shape, ", "),
                              fmt::join(shape, ", ")),
                  "the checkpoint is damaged, or of another model than this reader knows");
  taken_.insert(name);
  return *found;
}

void ConsumedWeights::finish() const {
  for (const Weight& weight : named_.all()) {
    TESSERA_REQUIRE(taken_.count(weight.name) > 0,
                    Unsupported,
                    fmt::format("{}: tensor {} does not belong to a GPT-2",
                                what_,
                                checkpoint::JsonCursor::shown(weight.name)),
                    "use a checkpoint of a GPT-2-style model; this format holds no others");
  }
}

checkpoint::StreamedTensor stream(const Weight& weight, std::string name) {
  const auto read = [weight](std::int64_t begin, std::int64_t end, std::byte* out) {
    weight.copy(begin, end, out);
  };
  return {std::move(name), weight.dtype, weight.shape, read, {}, [weight] { weight.release(); }};
}

Named::Named(std::vector<Weight> weights) : weights_(std::move(weights)) {
  for (std::size_t i = 0; i < weights_.size(); ++i)
    by_name_.emplace(weights_[i].name, i);
}

const Weight* Named::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &weights_[found->second];
}

bool is_stored_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq");
}

const json::Value* at_path(const json::Value& value, std::string_view path) {
  const json::Value* at = &value;
  for (const std::string& key : text::split(std::string(path), '.')) {
    if (at->is_array()) {
      std::size_t index = 0;
      const auto [end, failed] = std::from_chars(key.data(), key.data() + key.size(), index);
      if (failed != std::errc() || end != key.data() + key.size() || index >= at->items().size())
        return nullptr;
      at = &at->items()[index];
    } else {
      at = at->is_object() ? at->find(key) : nullptr;
      if (at == nullptr) return nullptr;
    }
  }
  return at;
}

std::int64_t integer_at(const json::Value& value, std::string_view path, std::int64_t absent) {
  const json::Value* found = at_path(value, path);
  return found != nullptr && found->is_number() ? found->as_integer().value_or(absent) : absent;
}

std::optional<double> number_at(const json::Value& value, std::string_view path) {
  const json::Value* found = at_path(value, path);
  return found != nullptr && found->is_number() ? std::optional(found->as_double()) : std::nullopt;
}

namespace {

// Larger integers are not exact in a double.
constexpr std::int64_t kMostUpdates = std::int64_t{1} << 53;

std::optional<std::int64_t> whole(double value) {
  const bool is_count =
      value >= 0 && value < static_cast<double>(kMostUpdates) && value == std::floor(value);
  return is_count ? std::optional(static_cast<std::int64_t>(value)) : std::nullopt;
}

/// The only element of a tensor as a count, or as text if it is not a count.
std::variant<std::int64_t, std::string> count_in(const Weight& tensor) {
  const auto element = [&]<class T>(T value) {
    tensor.copy(0, 1, reinterpret_cast<std::byte*>(&value));
    return value;
  };
  if (tensor.numel() != 1)
    return fmt::format("a tensor of shape [{}]", fmt::join(tensor.shape, ", "));
  if (tensor.dtype == DType::I64) {
    const auto value = element(std::int64_t{0});
    if (value >= 0 && value < kMostUpdates) return value;
    return std::to_string(value);
  }
  if (tensor.dtype != DType::F32 && tensor.dtype != DType::F64)
    return fmt::format("a tensor of {}", name(tensor.dtype));
  const double value = tensor.dtype == DType::F32 ? element(0.0F) : element(0.0);
  if (const auto count = whole(value)) return *count;
  return fmt::format("{}", value);
}

/// The count at `path`: from the tensor there, or from the value that is there instead.
std::optional<std::int64_t> count_from(const Weight* tensor,
                                       const json::Value* found,
                                       const std::string& path,
                                       const fs::path& file) {
  std::variant<std::int64_t, std::string> read;
  if (tensor != nullptr) {
    read = count_in(*tensor);
  } else {
    if (found == nullptr || !found->is_number()) return std::nullopt;
    read = found->dump();
    if (const auto count = whole(found->as_double())) read = *count;
  }
  const std::string* wrong = std::get_if<std::string>(&read);
  TESSERA_REQUIRE(wrong == nullptr,
                  Format,
                  fmt::format("{}: {} is {}, which is not a number of updates",
                              file.string(),
                              path.empty() ? "its value" : path,
                              *wrong),
                  "the checkpoint is damaged: copy its files again");
  return std::get<std::int64_t>(read);
}

}  // namespace

std::optional<std::int64_t> count_at(const Named& tensors,
                                     const json::Value& values,
                                     const std::string& path,
                                     const fs::path& file) {
  const Weight* tensor = tensors.find(path);
  const json::Value* found = tensor != nullptr ? nullptr
                             : path.empty()    ? &values
                                               : at_path(values, path);
  return count_from(tensor, found, path, file);
}

void UpdateCounts::add(const std::string& parameter, std::optional<std::int64_t> count) {
  if (!count) return;
  if (!count_) {
    count_ = count;
    parameter_ = parameter;
  } else if (*count != *count_ && difference_.empty()) {
    difference_ = fmt::format("{} has {} updates and {} has {}",
                              checkpoint::JsonCursor::shown(parameter_),
                              *count_,
                              checkpoint::JsonCursor::shown(parameter),
                              *count);
  }
}

UpdateCounts counts_in(const Named& tensors,
                       const json::Value& values,
                       const std::string& root,
                       const std::map<std::string, std::string>& names,
                       const fs::path& file) {
  UpdateCounts out;
  const json::Value* states = at_path(values, root);
  if (states == nullptr || !states->is_object()) return out;
  for (const auto& [number, state] : states->members()) {
    const std::string path = fmt::format("{}.{}.step", root, number);
    const auto name = names.find(number);
    out.add(name != names.end() ? name->second : number,
            count_from(
                tensors.find(path), state.is_object() ? state.find("step") : nullptr, path, file));
  }
  return out;
}

}  // namespace tessera::interop
