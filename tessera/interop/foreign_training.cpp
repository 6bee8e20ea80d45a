// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/foreign_training.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/convert.h"
#include "tessera/checkpoint/geometry.h"
#include "tessera/interop/weights_of.h"
#include "tessera/parallel/param_facts.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/run_plan.h"

namespace tessera::interop {
namespace {

namespace fs = std::filesystem;

/// Reads pieces of tessera's tensors from another program's tensors.
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
    // A range of whole rows is one run; a box has one run per row.
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

/// Optimizers that keep the same moments of the same gradients have one name; others keep their
/// own.
std::string kind_of(const std::string& type) {
  static constexpr std::array<std::string_view, 10> kAdam = {"adam",
                                                             "adamw",
                                                             "fusedadam",
                                                             "cpuadam",
                                                             "cpu_adam",
                                                             "deepspeedcpuadam",
                                                             "hybridadam",
                                                             "torchadam",
                                                             "muadam",
                                                             "muadamw"};
  const std::string lower = text::lower(type);
  if (std::find(kAdam.begin(), kAdam.end(), lower) != kAdam.end()) return "adam";
  if (lower == "fusedlamb") return "lamb";
  return lower == "musgd" ? "sgd" : lower;
}

void require_state(bool has_state, const fs::path& path, const std::string& what) {
  TESSERA_REQUIRE(
      has_state,
      Format,
      fmt::format("{} is {}: without an optimizer's state there is nothing to go on with",
                  path.string(),
                  what),
      "start a new training from its weights: model.from");
}

/// Moments of one rule are useless for another, even if they have the same names.
void check_optimizer(const Foreign& foreign, const planner::Plan& plan, const fs::path& path) {
  const std::string& wanted = plan.recipe().optimizer.type;
  const char* const fix =
      "set optimizer.type to the one that it was, or take only its weights: model.from";
  const json::Value* type = at_path(foreign.config, "optimizer.type");
  if (type != nullptr && type->is_string()) {
    TESSERA_REQUIRE(kind_of(type->as_string()) == kind_of(wanted),
                    Config,
                    fmt::format("{} is a training of {}, and optimizer.type is {}",
                                path.string(),
                                type->dump(),
                                wanted),
                    fix);
  }
  std::set<std::string> kept;
  const auto rule = planner::make_rule(plan.recipe());
  for (const auto& info : nn::parameters_of(plan.model().resolved.model)) {
    for (const auto& state : rule->state(parallel::facts_of(*info)))
      kept.insert(state.name);
  }
  for (const auto& [state, tensors] : foreign.state) {
    TESSERA_REQUIRE(
        kept.count(state) > 0,
        Config,
        fmt::format(
            "{} holds {} of its optimizer, and {} keeps none", path.string(), state, wanted),
        fix);
  }
  require_state(kept.empty() || !foreign.state.empty(), path, foreign.what);
  for (const std::string& state : kept) {
    TESSERA_REQUIRE(
        foreign.state.count(state) > 0,
        Config,
        fmt::format(
            "{} holds no {} of its optimizer, and {} keeps it", path.string(), state, wanted),
        fix);
  }
}

/// Reports parameters without optimizer state if others have it.
void require_all_trained(const Foreign& foreign, const models::WeightMap& map) {
  std::set<std::string> trained;
  for (const auto& [state, tensors] : foreign.state) {
    for (const auto& tensor : tensors)
      trained.insert(tensor.name);
  }
  std::vector<std::string> frozen;
  for (const auto& tensor : foreign.weights) {
    const bool buffer = map.is_buffer != nullptr && map.is_buffer(tensor.name);
    if (!trained.empty() && trained.count(tensor.name) == 0 && !buffer)
      frozen.push_back(tensor.name);
  }
  TESSERA_REQUIRE(
      frozen.empty(),
      Unsupported,
      fmt::format(
          "{}: {} had frozen parameters, of which its optimizer keeps nothing: {}",
          foreign.path.string(),
          foreign.what,
          text::join(std::span(frozen).first(std::min<std::size_t>(frozen.size(), 8)), ", ")),
      "its weights alone are read: model.from, or tessera convert to a Hugging Face folder");
}

}  // namespace

checkpoint::Checkpoint as_checkpoint(const Foreign& foreign,
                                     const models::Family& family,
                                     const models::Resolved& model,
                                     std::int64_t sequence_length,
                                     std::int64_t global_batch) {
  auto source = std::make_shared<Renamed>();
  std::vector<checkpoint::Checkpoint::Tensor> tensors;
  const auto parameters = nn::parameters_of(model.model);
  const std::string where = foreign.path.string();
  const auto pages = std::make_shared<ReadPages>();
  const auto add = [&](const std::string& prefix,
                       const std::vector<checkpoint::StreamedTensor>& theirs,
                       const std::string& what) {
    const models::WeightSource from = weights_of(theirs, family, model, what, pages);
    for (const auto& info : parameters) {
      tensors.push_back({prefix + info->name, DType::F32, info->shape});
      source->add(prefix + info->name, info, from);
    }
  };
  add("", foreign.weights, where);
  require_all_trained(foreign, family.weight_map);
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

checkpoint::Checkpoint open_training(const fs::path& path, const planner::Plan& plan) {
  if (checkpoint::is_checkpoint(path)) {
    checkpoint::Checkpoint opened(path);
    const json::Value* imported = opened.meta().extra.find("imported");
    if (imported != nullptr && imported->is_string()) {
      require_state(
          std::any_of(opened.tensors().begin(),
                      opened.tensors().end(),
                      [](const auto& tensor) { return tensor.name.starts_with("optimizer."); }),
          path,
          imported->as_string());
    }
    return opened;
  }
  const bool universal = plan.run().checkpoint.load_universal;
  const auto foreign = open_foreign(path, universal ? kUniversalFormat : "");
  TESSERA_REQUIRE(
      foreign.has_value() || !universal || !is_foreign(path),
      Config,
      fmt::format("checkpoint.load_universal is true, and {} holds no universal checkpoint",
                  path.string()),
      "make one of it with DeepSpeed's ds_to_universal.py, or set checkpoint.load_universal to "
      "false: every checkpoint fits every layout");
  TESSERA_REQUIRE(foreign.has_value(),
                  Format,
                  fmt::format("{} holds no training that can be read", path.string()),
                  "name a run, a checkpoint, or a checkpoint of DeepSpeed");
  TESSERA_REQUIRE(
      models::families().has(plan.model().options.family()),
      Unsupported,
      fmt::format("{}: names of the program's own model are not known there", path.string()),
      "go on from a checkpoint of tessera");
  checkpoint::Checkpoint opened =
      as_checkpoint(*foreign,
                    models::families().get(plan.model().options.family()),
                    plan.model().resolved,
                    plan.data().sequence_length,
                    plan.recipe().global_batch);
  check_optimizer(*foreign, plan, path);
  return opened;
}

}  // namespace tessera::interop
