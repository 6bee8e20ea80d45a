// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/weights_of.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/convert.h"

namespace tessera::interop {
namespace {

using checkpoint::StreamedTensor;

/// Names that the file may have for a tensor of Hugging Face's, without the wrappers.
std::string without_base(const std::string& name) {
  const std::size_t dot = name.find('.');
  return dot == std::string::npos ? name : name.substr(dot + 1);
}

void add_list(std::string& text, const char* title, const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 8;
  if (names.empty()) return;
  const auto shown = std::span(names).first(std::min(names.size(), kShown));
  text += fmt::format("\n  {} ({}): {}{}",
                      title,
                      names.size(),
                      text::join(shown, ", "),
                      names.size() > kShown ? ", ..." : "");
}

/// Where a file and a model do not agree, tensor by tensor.
struct Mismatch {
  std::vector<std::string> missing, unexpected, misshapen;

  void require_none(const std::string& what) const {
    if (missing.empty() && unexpected.empty() && misshapen.empty()) return;
    std::string text = fmt::format("{} does not fit the model", what);
    add_list(text, "missing", missing);
    add_list(text, "unexpected", unexpected);
    add_list(text, "of another shape", misshapen);
    throw Error(Error::Kind::Format,
                text,
                "describe the model that these weights belong to: by the config.json that came "
                "with them, or in the configuration");
  }
};

/// Elements [begin, end) of `tensor` as fp32, those of another type some at a time in `raw`.
void read_floats(const checkpoint::StreamedTensor& tensor,
                 std::int64_t begin,
                 std::int64_t end,
                 float* out,
                 std::vector<std::byte>& raw) {
  if (tensor.dtype == DType::F32) return tensor.read(begin, end, reinterpret_cast<std::byte*>(out));
  constexpr std::int64_t kElements = 1 << 19;
  for (std::int64_t at = begin; at < end; at += kElements) {
    const std::int64_t count = std::min(kElements, end - at);
    raw.resize(static_cast<std::size_t>(count) * size_of(tensor.dtype));
    tensor.read(at, at + count, raw.data());
    checkpoint::convert(tensor.dtype,
                        raw.data(),
                        DType::F32,
                        reinterpret_cast<std::byte*>(out + (at - begin)),
                        count);
  }
}

struct Theirs {
  models::HfTensor place;
  checkpoint::StreamedTensor tensor;
};

/// Theirs is [columns, rows]: what is wanted of our rows [first, last) stands together in each of
/// theirs. Some of these at a time, so that whole cache lines of ours are written.
void read_transposed(const Theirs& theirs, std::int64_t begin, std::int64_t end, float* out) {
  constexpr std::int64_t kLines = 16;
  const std::int64_t columns = theirs.place.shape[0], rows = theirs.place.shape[1];
  const std::int64_t first = begin / columns, last = (end + columns - 1) / columns;
  const std::int64_t width = last - first;
  // Of one row of ours, as a cut by columns asks for, a part may be enough.
  const std::int64_t from = width == 1 ? begin - first * columns : 0;
  const std::int64_t to = width == 1 ? end - first * columns : columns;
  std::vector<float> lines(static_cast<std::size_t>(std::min(kLines, to - from) * width));
  std::vector<std::byte> raw;
  for (std::int64_t c = from; c < to; c += kLines) {
    const std::int64_t count = std::min(kLines, to - c);
    for (std::int64_t k = 0; k < count; ++k) {
      const std::int64_t line = (c + k) * rows;
      read_floats(theirs.tensor, line + first, line + last, lines.data() + k * width, raw);
    }
    for (std::int64_t r = first; r < last; ++r) {
      for (std::int64_t k = 0; k < count; ++k) {
        const std::int64_t i = r * columns + c + k;
        if (i >= begin && i < end)
          out[i - begin] = lines[static_cast<std::size_t>(k * width + r - first)];
      }
    }
  }
}

void read_range(const Theirs& theirs, std::int64_t begin, std::int64_t end, float* out) {
  if (theirs.place.transposed) return read_transposed(theirs, begin, end, out);
  std::vector<std::byte> raw;
  read_floats(theirs.tensor, begin, end, out, raw);
}

/// Whether two tensors have the same bits as fp32.
bool equal(const checkpoint::StreamedTensor& a, const checkpoint::StreamedTensor& b) {
  if (a.shape != b.shape || !checkpoint::convertible(a.dtype, DType::F32)) return false;
  constexpr std::int64_t kElements = 1 << 18;
  const auto numel = static_cast<std::int64_t>(b.bytes() / size_of(b.dtype));
  std::vector<float> ours(kElements), theirs(kElements);
  std::vector<std::byte> raw;
  for (std::int64_t at = 0; at < numel; at += kElements) {
    const std::int64_t end = std::min(at + kElements, numel);
    read_floats(a, at, end, ours.data(), raw);
    read_floats(b, at, end, theirs.data(), raw);
    const auto bytes = static_cast<std::size_t>(end - at) * sizeof(float);
    if (std::memcmp(ours.data(), theirs.data(), bytes) != 0) return false;
  }
  return true;
}

/// The head that is stored beside the token table of a tied model must be that table.
void require_tied(const checkpoint::StreamedTensor& head,
                  const checkpoint::StreamedTensor& table,
                  const std::string& what) {
  TESSERA_REQUIRE(
      equal(head, table),
      Format,
      fmt::format("{}: {} differs from {}, and the model has one matrix for both",
                  what,
                  head.name,
                  table.name),
      "set tie_word_embeddings to false in config.json (model.tie_embeddings in a configuration), "
      "or drop the head from the file");
}

}  // namespace

bool is_buffer(std::string_view name) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
}

std::string unwrapped(std::string name) {
  constexpr std::array<std::string_view, 2> kWrappers = {"module.", "_orig_mod."};
  for (bool again = true; again;) {
    again = false;
    for (const std::string_view wrapper : kWrappers) {
      if (!name.starts_with(wrapper)) continue;
      name.erase(0, wrapper.size());
      again = true;
    }
  }
  return name;
}

void ReadPages::add(const void* tensor,
                    std::uint64_t bytes,
                    bool in_order,
                    const std::function<void()>& release) {
  constexpr std::uint64_t kPage = 4096, kHeld = std::uint64_t{16} << 20;
  const std::lock_guard lock(mutex_);
  if (last_ != tensor) {
    if (release_) release_();
    last_ = tensor;
    release_ = release;
    bytes_ = 0;
  }
  // Of what is not read in order, later reads touch the same pages again.
  if (!in_order) return;
  bytes_ += std::max(bytes, kPage);
  if (bytes_ < kHeld) return;
  bytes_ = 0;
  if (release_) release_();
}

models::WeightSource weights_of(const std::vector<checkpoint::StreamedTensor>& tensors,
                                const models::Family& family,
                                const models::Resolved& resolved,
                                const std::string& what,
                                std::shared_ptr<ReadPages> pages) {
  std::map<std::string, const checkpoint::StreamedTensor*> found;
  Mismatch mismatch;
  for (const checkpoint::StreamedTensor& tensor : tensors) {
    if (is_buffer(tensor.name)) continue;
    // Of two names that are the same without wrappers nobody knows which is meant.
    if (!found.emplace(unwrapped(tensor.name), &tensor).second)
      mismatch.unexpected.push_back(tensor.name);
  }
  auto held = std::make_shared<std::map<std::string, Theirs>>();
  std::set<std::string> used;
  for (const auto& info : nn::parameters_of(resolved.model)) {
    models::HfTensor place = family.hf_tensor(*info);
    auto at = found.find(place.name);
    if (at == found.end()) at = found.find(without_base(place.name));
    if (at == found.end()) {
      mismatch.missing.push_back(place.name);
      continue;
    }
    used.insert(at->first);
    const checkpoint::StreamedTensor& tensor = *at->second;
    if (tensor.shape != place.shape) {
      mismatch.misshapen.push_back(fmt::format("{} [{}] instead of [{}]",
                                               tensor.name,
                                               fmt::join(tensor.shape, ", "),
                                               fmt::join(place.shape, ", ")));
    } else if (!checkpoint::convertible(tensor.dtype, DType::F32)) {
      mismatch.misshapen.push_back(
          fmt::format("{} has type {}", tensor.name, tessera::name(tensor.dtype)));
    } else {
      held->emplace(info->name, Theirs{std::move(place), tensor});
    }
  }
  // A tied head may be stored as well; it must be the token table.
  for (const auto& [name, tensor] : found) {
    if (used.count(name) == 0 && name != "lm_head.weight")
      mismatch.unexpected.push_back(tensor->name);
  }
  mismatch.require_none(what);
  const auto head = found.find("lm_head.weight");
  const auto table = held->find("wte.weight");
  if (head != found.end() && used.count(head->first) == 0 && table != held->end())
    require_tied(*head->second, table->second.tensor, what);
  return [held, pages = std::move(pages)](
             const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    TESSERA_ASSERT(begin >= 0 && begin <= end && end <= info.numel());
    if (begin == end) return;
    const Theirs& theirs = held->at(info.name);
    read_range(theirs, begin, end, out);
    pages->add(&theirs,
               static_cast<std::uint64_t>(end - begin) * size_of(theirs.tensor.dtype),
               !theirs.place.transposed,
               theirs.tensor.release);
  };
}

}  // namespace tessera::interop
