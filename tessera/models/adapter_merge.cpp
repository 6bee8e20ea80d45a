// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/adapter_merge.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/models/adapter.h"

namespace tessera::models {

double norm_of(const float* values, std::size_t count) {
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i)
    sum += static_cast<double>(values[i]) * values[i];
  return std::sqrt(sum);
}

namespace {

/// A, B and the magnitude of a module, in fp32.
struct HeldModule {
  const AdapterModule* module = nullptr;
  std::vector<float> a, b, magnitude;
};

/// A cache of the modules whose parameters were read last.
class HeldModules {
 public:
  HeldModules(const Adapter& adapter, WeightSource source)
      : adapter_(adapter), source_(std::move(source)) {}

  std::shared_ptr<const HeldModule> get(const AdapterModule& module) {
    const std::lock_guard lock(mutex_);
    for (const auto& held : held_) {
      if (held->module == &module) return held;
    }
    auto held = std::make_shared<HeldModule>();
    held->module = &module;
    held->a = read(module.a());
    held->b = read(module.b());
    if (module.part.magnitude) held->magnitude = read(module.magnitude());
    constexpr std::size_t kHeld = 4;
    if (held_.size() == kHeld) held_.erase(held_.begin());
    held_.push_back(held);
    return held;
  }

 private:
  std::vector<float> read(const std::string& name) {
    const ParamInfo& info = *adapter_.parameters.at(name);
    std::vector<float> out(static_cast<std::size_t>(info.numel()));
    source_(info, 0, info.numel(), out.data());
    return out;
  }

  const Adapter& adapter_;
  WeightSource source_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<const HeldModule>> held_;
};

/// The box's row for row `row` of the weight; nothing if it is outside.
std::optional<std::int64_t> row_in_box(const AdapterModule& module, std::int64_t row) {
  const Shape& shape = module.weight->shape;
  const nn::LowRankPart& part = module.part;
  std::int64_t out = 0, stride = 1;
  for (std::size_t d = part.sizes.size(); d-- > 0;) {
    const std::int64_t index = row % shape[d] - part.begin[d];
    if (index < 0 || index >= part.sizes[d]) return std::nullopt;
    out += index * stride;
    stride *= part.sizes[d];
    row /= shape[d];
  }
  return out;
}

/// Adds the adapter's change to one complete row of the weight.
void merge_row(const HeldModule& held, std::int64_t row, float* values) {
  const nn::LowRankPart& part = held.module->part;
  const auto inputs = static_cast<std::size_t>(held.module->inputs),
             rank = static_cast<std::size_t>(part.rank), at = static_cast<std::size_t>(row);
  if (held.module->table) {
    for (std::size_t i = 0; i < inputs; ++i) {
      double sum = 0;
      for (std::size_t k = 0; k < rank; ++k)
        sum += static_cast<double>(held.a[at * rank + k]) * held.b[i * rank + k];
      values[i] += static_cast<float>(part.scale * sum);
    }
    return;
  }
  const std::size_t first =
      held.module->experts == 0 ? 0 : at / static_cast<std::size_t>(held.module->outputs) * rank;
  for (std::size_t k = 0; k < rank; ++k) {
    const float factor = static_cast<float>(part.scale) * held.b[at * rank + k];
    const float* const a = held.a.data() + (first + k) * inputs;
    for (std::size_t i = 0; i < inputs; ++i)
      values[i] += factor * a[i];
  }
  if (!part.magnitude) return;
  const auto norm = static_cast<float>(norm_of(values, inputs));
  for (std::size_t i = 0; i < inputs; ++i)
    values[i] *= held.magnitude[at] / norm;
}

}  // namespace

WeightSource merged_weights(const Adapter& adapter,
                            WeightSource base,
                            WeightSource adapter_weights) {
  for (const AdapterModule& module : adapter.modules) {
    TESSERA_REQUIRE(
        !module.tied,
        Unsupported,
        fmt::format("the adapter of {} cannot be merged: the model's head multiplies by "
                    "the same table, which it would change too",
                    module.part.module),
        "generate with the adapter and its base apart (tessera generate BASE --adapter "
        "PATH), or write it for PEFT (tessera adapter extract)");
  }
  struct Merger {
    Adapter adapter;
    WeightSource base, trained;
    HeldModules held;
    std::map<std::string, std::vector<const AdapterModule*>> by_weight;
    Merger(const Adapter& from, WeightSource weights, WeightSource changes)
        : adapter(from),
          base(std::move(weights)),
          trained(std::move(changes)),
          held(adapter, trained) {
      for (const AdapterModule& module : adapter.modules)
        by_weight[module.weight->name].push_back(&module);
    }
  };
  auto merger = std::make_shared<Merger>(adapter, std::move(base), std::move(adapter_weights));
  return [merger](const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    if (merger->adapter.trained.contains(info.name)) return merger->trained(info, begin, end, out);
    const auto found = merger->by_weight.find(info.name);
    if (found == merger->by_weight.end()) return merger->base(info, begin, end, out);
    const std::int64_t inputs = info.shape.back(), first = begin / inputs,
                       last = (end + inputs - 1) / inputs;
    // Reads whole rows, because a norm needs all of a row.
    constexpr std::int64_t kFloats = std::int64_t{1} << 22;
    const std::int64_t at_a_time = std::max<std::int64_t>(1, kFloats / inputs);
    std::vector<float> rows;
    for (std::int64_t row = first; row < last; row += at_a_time) {
      const std::int64_t count = std::min(at_a_time, last - row);
      rows.resize(static_cast<std::size_t>(count * inputs));
      merger->base(info, row * inputs, (row + count) * inputs, rows.data());
      for (const AdapterModule* module : found->second) {
        const auto held = merger->held.get(*module);
        for (std::int64_t r = row; r < row + count; ++r) {
          if (const auto in_box = row_in_box(*module, r))
            merge_row(*held, *in_box, rows.data() + (r - row) * inputs);
        }
      }
      const std::int64_t from = std::max(begin, row * inputs),
                         to = std::min(end, (row + count) * inputs);
      std::copy(rows.data() + (from - row * inputs),
                rows.data() + (to - row * inputs),
                out + (from - begin));
    }
  };
}

}  // namespace tessera::models
