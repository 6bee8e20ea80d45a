// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/weights_of.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/huggingface/quantized_weights.h"
#include "tessera/models/hf_objective.h"

namespace tessera::interop {
namespace {

using checkpoint::StreamedTensor;

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

/// The differences between a file and a model, tensor by tensor.
struct Mismatch {
  std::vector<std::string> missing, unexpected, misshapen;
  /// Rows of the file's token table if the model's has another number of them; 0: it has the same.
  std::int64_t vocabulary = 0;

  void require_none(const std::string& what) const {
    if (missing.empty() && unexpected.empty() && misshapen.empty()) return;
    std::string text = fmt::format("{} does not fit the model", what);
    add_list(text, "missing", missing);
    add_list(text, "unexpected", unexpected);
    add_list(text, "of another shape", misshapen);
    std::string fix =
        "describe the model that these weights belong to: by the config.json that "
        "came with them, or in the configuration";
    if (vocabulary > 0) fix += fmt::format("; it has a vocab_size of {}", vocabulary);
    throw Error(Error::Kind::Format, text, std::move(fix));
  }
};

/// Reads elements [begin, end) of `tensor` as fp32; other dtypes are converted piece by piece in
/// `raw`.
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

/// A stored tensor from which a parameter is composed.
struct Source {
  models::StridedCopy copy;
  StreamedTensor tensor;
};

/// Reads the tensor's part of elements [begin, end) of the parameter; returns its number of
/// elements.
std::int64_t read_range(const Source& source, std::int64_t begin, std::int64_t end, float* out) {
  std::vector<std::byte> raw;
  std::int64_t elements = 0;
  const auto read = [&](std::int64_t from, std::int64_t to, float* to_floats) {
    read_floats(source.tensor, from, to, to_floats, raw);
    elements += to - from;
  };
  copy_range(source.copy, begin, end, read, out);
  return elements;
}

/// A head that is stored next to the token table of a tied model must equal that table.
void require_tied(const checkpoint::StreamedTensor& head,
                  const checkpoint::StreamedTensor& table,
                  const std::string& what) {
  TESSERA_REQUIRE(
      same_values(head, table),
      Format,
      fmt::format("{}: {} differs from {}, and the model has one matrix for both",
                  what,
                  head.name,
                  table.name),
      "set tie_word_embeddings to false in config.json (model.tie_embeddings in a configuration), "
      "or drop the head from the file");
}

}  // namespace

bool same_values(const checkpoint::StreamedTensor& a, const checkpoint::StreamedTensor& b) {
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
  // Reads out of order access the same pages again later.
  if (!in_order) return;
  bytes_ += std::max(bytes, kPage);
  if (bytes_ < kHeld) return;
  bytes_ = 0;
  if (release_) release_();
}

namespace {

/// The tensors of a file by name, without wrappers and buffers.
class Found {
 public:
  Found(const std::vector<StreamedTensor>& tensors,
        const models::WeightMap& map,
        std::vector<models::Tie> ties,
        Mismatch& mismatch)
      : map_(map), ties_(std::move(ties)), mismatch_(mismatch) {
    for (const StreamedTensor& tensor : tensors) {
      if (map.is_buffer != nullptr && map.is_buffer(tensor.name)) continue;
      // If two names are equal without wrappers, neither is known to be the right one.
      std::string name = unwrapped(tensor.name);
      if (map.known_as != nullptr) name = map.known_as(std::move(name));
      if (!by_name_.emplace(std::move(name), &tensor).second)
        mismatch_.unexpected.push_back(tensor.name);
    }
  }

  /// Finds a tensor with or without the base; nullptr if there is none.
  const StreamedTensor* find(const std::string& name) const {
    auto at = by_name_.find(name);
    if (at == by_name_.end()) at = by_name_.find(map_.without_base(name));
    return at == by_name_.end() ? nullptr : at->second;
  }
  /// The same under the tensor's name or else under a second name of it.
  const StreamedTensor* find_either(const std::string& name) const {
    const StreamedTensor* tensor = find(name);
    for (auto tie = ties_.begin(); tie != ties_.end() && tensor == nullptr; ++tie) {
      if (tie->of == name) tensor = find(tie->alias);
    }
    return tensor;
  }
  /// The tensor of a part, if it fits; else adds it to the mismatch, once per tensor.
  const StreamedTensor* take(const models::Composition::Part& part, const ParamInfo& info) {
    const StreamedTensor* tensor = find_either(part.tensor);
    const bool first = asked_.insert(part.tensor).second;
    if (tensor == nullptr) {
      if (first) mismatch_.missing.push_back(part.tensor);
      return nullptr;
    }
    used_.insert(tensor);
    if (tensor->shape != part.tensor_shape) {
      if (first) {
        const bool rows = !info.axes.empty() && info.axes.front() == LogicalAxis::Vocab &&
                          tensor->shape.size() == 2;
        if (rows) mismatch_.vocabulary = tensor->shape.front();
        mismatch_.misshapen.push_back(fmt::format("{} [{}] instead of [{}]",
                                                  tensor->name,
                                                  fmt::join(tensor->shape, ", "),
                                                  fmt::join(part.tensor_shape, ", ")));
      }
      return nullptr;
    }
    if (!checkpoint::convertible(tensor->dtype, DType::F32)) {
      if (first) {
        mismatch_.misshapen.push_back(
            fmt::format("{} has type {}", tensor->name, tessera::name(tensor->dtype)));
      }
      return nullptr;
    }
    return tensor;
  }
  /// Adds every tensor to the mismatch that is neither taken nor the alias of a tie. `heads`: nor
  /// outside of the modules of which some tensor was taken.
  void finish(bool heads) {
    std::set<std::string> modules;
    for (const auto& [name, tensor] : by_name_) {
      if (used_.count(tensor) > 0) modules.insert(first_module(name));
    }
    for (const models::Tie& tie : ties_) {
      if (const StreamedTensor* tensor = find(tie.alias)) used_.insert(tensor);
    }
    for (const auto& [name, tensor] : by_name_) {
      if (map_.may_be_unused != nullptr && map_.may_be_unused(name)) continue;
      if (heads && !modules.empty() && modules.count(first_module(name)) == 0) continue;
      if (used_.count(tensor) == 0) mismatch_.unexpected.push_back(tensor->name);
    }
  }

 private:
  static std::string first_module(const std::string& name) {
    return name.substr(0, name.find('.'));
  }

  const models::WeightMap& map_;
  std::vector<models::Tie> ties_;
  Mismatch& mismatch_;
  std::map<std::string, const StreamedTensor*> by_name_;
  std::set<std::string> asked_;
  std::set<const StreamedTensor*> used_;
};

}  // namespace

models::WeightSource weights_of(const std::vector<StreamedTensor>& tensors,
                                const models::Family& family,
                                const models::Resolved& resolved,
                                const std::string& what,
                                std::shared_ptr<ReadPages> pages) {
  const models::WeightMap& map = family.weight_map;
  const models::Parameters parameters = nn::parameters_of(resolved.model);
  Mismatch mismatch;
  const std::vector<models::Tie> ties = ties_of(map, parameters);
  Found found(tensors, map, ties, mismatch);
  auto held = std::make_shared<std::map<std::string, std::vector<Source>>>();
  for (const auto& info : parameters) {
    const models::Composition composition = map.compose(*info);
    TESSERA_ASSERT(composition.shape() == info->shape);
    std::vector<Source>& sources = (*held)[info->name];
    for (const models::Composition::Part& part : composition.parts()) {
      if (const StreamedTensor* tensor = found.take(part, *info))
        sources.push_back({composition.copy_of(part), *tensor});
    }
  }
  // Embeddings need no head, so that it does not matter which one the file has.
  const bool without_head = resolved.objective.name == models::kEmbedding;
  found.finish(without_head);
  mismatch.require_none(what);
  for (const models::Tie& tie : ties) {
    if (without_head) break;
    const StreamedTensor* alias = found.find(tie.alias);
    const StreamedTensor* tensor = found.find(tie.of);
    if (alias != nullptr && tensor != nullptr && !tie.unused) require_tied(*alias, *tensor, what);
  }
  return [held, pages = std::move(pages)](
             const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    TESSERA_ASSERT(begin >= 0 && begin <= end && end <= info.numel());
    if (begin == end) return;
    for (const Source& source : held->at(info.name)) {
      const std::int64_t elements = read_range(source, begin, end, out);
      if (elements == 0) continue;
      pages->add(&source,
                 static_cast<std::uint64_t>(elements) * size_of(source.tensor.dtype),
                 source.copy.in_order(),
                 source.tensor.release);
    }
  };
}

namespace {

/// True if the name, without wrappers, is that of a tensor that every file of some family has.
bool is_anchor(std::string_view plain) {
  for (const std::string& name : models::families().names()) {
    const models::WeightMap& map = models::families().get(name).weight_map;
    if (plain == map.anchor || plain == map.without_base(map.anchor)) return true;
  }
  return false;
}

/// The prefix of a model's names under `key`; nothing if there is no model. If there are several,
/// the shortest.
std::optional<std::string> container_under(std::string_view key,
                                           const std::vector<Weight>& weights) {
  std::optional<std::string> out;
  for (const Weight& weight : weights) {
    if (!weight.name.starts_with(key)) continue;
    const std::string plain = unwrapped(weight.name.substr(key.size()));
    if (!is_anchor(plain)) continue;
    std::string container = weight.name.substr(0, weight.name.size() - plain.size());
    if (!out || container.size() < out->size()) out = std::move(container);
  }
  return out;
}

/// The prefix of all names; empty if the file itself is the state_dict, or belongs to an unknown
/// family.
std::string container_of(const std::vector<Weight>& weights) {
  for (const std::string_view key : {"", "state_dict.", "model_state_dict.", "model.", "net."}) {
    if (auto container = container_under(key, weights)) return *container;
  }
  return "";
}

/// Drops aliases that share the storage of the tensor with which they are tied, because these need
/// no comparison.
void drop_shared_aliases(std::vector<Weight>& weights,
                         const models::WeightMap& map,
                         const models::Resolved& model) {
  for (const models::Tie& tie : ties_of(map, nn::parameters_of(model.model))) {
    const auto table = std::find_if(weights.begin(), weights.end(), [&](const Weight& weight) {
      return weight.name == tie.of || weight.name == map.without_base(tie.of);
    });
    if (table == weights.end()) continue;
    const Weight kept = *table;
    std::erase_if(weights, [&](const Weight& weight) {
      return weight.name == tie.alias && weight.same_storage(kept);
    });
  }
}

}  // namespace

models::WeightSource weights_from_hf(const std::filesystem::path& path,
                                     const models::Family& family,
                                     const models::Resolved& resolved) {
  std::vector<Weight> weights = state_dict_of(open_weights(path));
  drop_shared_aliases(weights, family.weight_map, resolved);
  return weights_of(plain_weights(weights), family, resolved, path.string());
}

std::vector<Weight> state_dict_of(std::vector<Weight> weights) {
  const std::string container = container_of(weights);
  std::erase_if(weights, [&](const Weight& weight) { return !weight.name.starts_with(container); });
  for (Weight& weight : weights)
    weight.name.erase(0, container.size());
  return weights;
}

}  // namespace tessera::interop
