// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/foreign_training.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/checkpoint/geometry.h"
#include "tessera/models/weights_of.h"

namespace tessera::planner {
namespace {

namespace fs = std::filesystem;

/// Reads pieces of our tensors out of others'.
class Renamed final : public checkpoint::Source {
 public:
  void add(std::string name, std::shared_ptr<const ParamInfo> info, models::WeightSource from) {
    entries_.emplace(std::move(name), Entry{std::move(info), std::move(from)});
  }
  void read(const std::string& name,
            const mesh::Piece& want,
            DType to,
            std::byte* out) const override {
    const Entry& entry = entries_.at(name);
    const Shape& shape = entry.info->shape;
    const auto width = static_cast<std::int64_t>(size_of(to));
    // Of a range of whole rows this is one run; of a box, one for each of its rows.
    checkpoint::SharedRuns runs({mesh::whole(shape), 0, entry.info->numel()}, want);
    std::vector<float> piece;
    while (const auto run = runs.next()) {
      for (std::int64_t at = 0; at < run->count; at += kElements) {
        const std::int64_t count = std::min(kElements, run->count - at);
        piece.resize(static_cast<std::size_t>(count));
        entry.from(*entry.info, run->a + at, run->a + at + count, piece.data());
        checkpoint::convert(DType::F32,
                            reinterpret_cast<const std::byte*>(piece.data()),
                            to,
                            out + (run->b + at) * width,
                            count);
      }
    }
  }

 private:
  static constexpr std::int64_t kElements = std::int64_t{4} << 20;
  struct Entry {
    std::shared_ptr<const ParamInfo> info;
    models::WeightSource from;
  };
  std::map<std::string, Entry> entries_;
};

json::Value comparable(const json::Value& config) {
  json::Value out = json::Value::object();
  for (const char* key : {"optimizer", "scheduler", "gradient_clipping"}) {
    const json::Value* found = config.is_object() ? config.find(key) : nullptr;
    if (found != nullptr) out[key] = *found;
  }
  return out;
}

}  // namespace

checkpoint::Checkpoint as_checkpoint(const checkpoint::Foreign& foreign,
                                     const models::Family& family,
                                     const models::Resolved& model,
                                     std::int64_t sequence_length,
                                     std::int64_t global_batch) {
  auto source = std::make_shared<Renamed>();
  std::vector<checkpoint::Checkpoint::Tensor> tensors;
  const auto parameters = models::parameters_of(model.model);
  const std::string where = foreign.path.string();
  const auto add = [&](const std::string& prefix,
                       const std::vector<checkpoint::StreamedTensor>& theirs,
                       const std::string& what) {
    const models::WeightSource from = models::weights_of(theirs, family, model, what);
    for (const auto& info : parameters) {
      tensors.push_back({prefix + info->name, DType::F32, info->shape});
      source->add(prefix + info->name, info, from);
    }
  };
  add("", foreign.weights, where);
  for (const auto& [name, theirs] : foreign.state)
    add("optimizer." + name + ".", theirs, fmt::format("{} of {}", name, where));
  checkpoint::Meta meta;
  meta.step = foreign.step;
  meta.samples = foreign.samples.value_or(foreign.step * global_batch);
  meta.tokens = meta.samples * sequence_length;
  meta.config = comparable(foreign.config);
  meta.extra["imported"] = json::Value::string(foreign.what);
  meta.extra["skipped"] = json::Value::integer(foreign.skipped);
  if (!foreign.loss_scaler.is_null()) meta.extra["loss_scaler"] = foreign.loss_scaler;
  return {foreign.path, std::move(meta), std::move(tensors), std::move(source)};
}

checkpoint::Checkpoint open_training(const fs::path& path, const Plan& plan) {
  const auto require_state = [&](bool has_state, const std::string& what) {
    TESSERA_REQUIRE(
        has_state,
        Format,
        fmt::format("{} is {}: without an optimizer's state there is nothing to go on with",
                    path.string(),
                    what),
        "start a new training from its weights: model.from");
  };
  if (fs::exists(path / "manifest.json")) {
    checkpoint::Checkpoint opened(path);
    const json::Value* imported = opened.meta().extra.find("imported");
    if (imported != nullptr && imported->is_string()) {
      require_state(
          std::any_of(opened.tensors().begin(),
                      opened.tensors().end(),
                      [](const auto& tensor) { return tensor.name.starts_with("optimizer."); }),
          imported->as_string());
    }
    return opened;
  }
  const auto foreign = checkpoint::open_foreign(path);
  TESSERA_REQUIRE(foreign.has_value(),
                  Format,
                  fmt::format("{} holds no training that can be read", path.string()),
                  "name a run, a checkpoint, or a checkpoint of DeepSpeed");
  TESSERA_REQUIRE(
      models::families().has(plan.config.model.family),
      Unsupported,
      fmt::format("{}: names of the program's own model are not known there", path.string()),
      "go on from a checkpoint of tessera");
  return as_checkpoint(*foreign,
                       models::families().get(plan.config.model.family),
                       plan.model,
                       plan.sequence_length,
                       plan.global_batch);
}

}  // namespace tessera::planner
