// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/resume.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/engine/resume_curve.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/foreign_training.h"
#include "tessera/interop/weights_of.h"
#include "tessera/ops/activation.h"
#include "tessera/optim/make_rule.h"
#include "tessera/parallel/param_facts.h"
#include "tessera/planner/course.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/run_plan.h"
#include "tessera/planner/values.h"
#include "tessera/planner/with_data.h"
#include "tessera/text/tokenizer.h"

namespace tessera::engine {
namespace {
namespace fs = std::filesystem;

enum class Weight { Free, Accepted, Refused };

/// Classifies by the longest prefix of the key path that is listed here; everything else may differ
/// freely.
Weight weight_of(std::string_view path) {
  static constexpr std::array<std::pair<std::string_view, Weight>, 46> kRules = {{
      {"adapter", Weight::Refused},
      {"adapter.dropout", Weight::Accepted},
      {"adapter.from", Weight::Free},  // likewise: the source of its initial values
      {"adapter.lr_ratio", Weight::Accepted},
      {"distill", Weight::Accepted},
      {"qat", Weight::Accepted},
      {"task", Weight::Refused},
      {"model", Weight::Refused},
      {"model.from",
       Weight::Free},  // the source of the initial weights; the shape is compared separately
      {"model.new_weights", Weight::Free},  // likewise
      {"model.preset", Weight::Free},
      {"model.dropout", Weight::Refused},
      {"tokenizer", Weight::Refused},
      {"tokenizer.vocab",
       Weight::Free},  // the tokenizer's fingerprint is compared instead of file names
      {"tokenizer.merges", Weight::Free},
      {"data", Weight::Refused},
      {"data.train", Weight::Free},  // the data's fingerprint is compared instead of file names
      {"data.validation", Weight::Free},  // likewise, below
      {"data.test", Weight::Free},
      {"optimizer.type", Weight::Refused},
      {"optimizer.params", Weight::Accepted},
      {"optimizer.decay_all", Weight::Accepted},
      {"optimizer.groups", Weight::Accepted},
      {"optimizer.trained", Weight::Accepted},
      {"optimizer.weight_decay_schedule", Weight::Accepted},
      {"scheduler", Weight::Accepted},
      {"scheduler.on_resume", Weight::Free},  // the curve itself is compared
      {"gradient_clipping", Weight::Accepted},
      {"gradient_clip_value", Weight::Accepted},
      {"trainer.clip_after_warmup", Weight::Accepted},
      {"trainer.ema", Weight::Accepted},
      {"optimizer.layer_decay", Weight::Accepted},
      {"optimizer.gradual_unfreezing", Weight::Accepted},
      {"trainer.seed", Weight::Refused},
      {"fp16", Weight::Accepted},
      {"bf16", Weight::Accepted},
      {"amp", Weight::Accepted},
      {"torch_autocast", Weight::Accepted},
      {"data_types", Weight::Accepted},
      {"communication_data_type", Weight::Accepted},
      {"zero_optimization.zeropp_loco_param", Weight::Accepted},
      {"zero_optimization.zero_quantized_gradients", Weight::Accepted},
      {"zero_optimization.zero_quantized_weights", Weight::Accepted},
      {"zero_optimization.zero_quantized_nontrainable_weights", Weight::Accepted},
      {"train_batch_size", Weight::Accepted},
      {"rampup_batch_size", Weight::Accepted},
  }};
  Weight weight = Weight::Free;
  std::size_t longest = 0;
  for (const auto& [prefix, value] : kRules) {
    const bool matches = path == prefix || (path.size() > prefix.size() &&
                                            path.starts_with(prefix) && path[prefix.size()] == '.');
    if (matches && prefix.size() >= longest) {
      longest = prefix.size();
      weight = value;
    }
  }
  return weight;
}

/// Calls fn(path, old, new) for every leaf that differs; either value may be nullptr.
template <class Fn>
void differences(const std::string& path,
                 const json::Value* before,
                 const json::Value* after,
                 Fn& fn) {
  const bool objects =
      (before == nullptr || before->is_object()) && (after == nullptr || after->is_object());
  if (!objects) {
    if (before == nullptr || after == nullptr || !(*before == *after)) fn(path, before, after);
    return;
  }
  std::vector<std::string> keys;
  for (const json::Value* side : {before, after}) {
    if (side == nullptr) continue;
    for (const auto& [key, value] : side->members()) {
      if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    }
  }
  for (const std::string& key : keys) {
    differences(json::join_path(path, key),
                before == nullptr ? nullptr : before->find(key),
                after == nullptr ? nullptr : after->find(key),
                fn);
  }
}

/// True if a block such as fp16 is enabled in a resolved configuration.
bool is_on(const json::Value& config, std::string_view block) {
  const json::Value* found = config.find(block);
  const json::Value* enabled =
      found != nullptr && found->is_object() ? found->find("enabled") : nullptr;
  return enabled != nullptr && enabled->is_bool() && enabled->as_bool();
}

/// True if `path` is in a block that is disabled before and after.
bool is_idle(std::string_view path, const json::Value& before, const json::Value& after) {
  for (const std::string_view block : {"fp16", "bf16", "amp", "torch_autocast"}) {
    if (path.starts_with(block) && path.size() > block.size() && path[block.size()] == '.')
      return !is_on(before, block) && !is_on(after, block);
  }
  return false;
}

/// Describes a change of the loss scaler; masters and moments are fp32 in every checkpoint.
std::optional<std::string> scaler_change(const checkpoint::Meta& meta, const planner::Plan& plan) {
  const json::Value* state = meta.extra.find("loss_scaler");
  const bool half = planner::working_of(plan) == DType::F16;
  if (!half && state == nullptr) return std::nullopt;
  if (!half) return "the state of the loss scaler is dropped: this run needs none";
  if (state != nullptr) return std::nullopt;
  return fmt::format(
      "the loss scale starts at {}: the checkpoint is of a run without one, whose weights may lie "
      "beyond what fp16 can compute with",
      text::number(optim::LossScaler(plan.recipe().scaling, plan.recipe().scaling_stage).scale()));
}

/// True if two different names mean the same thing.
bool name_one_thing(std::string_view path, const json::Value* before, const json::Value* after) {
  if (before == nullptr || after == nullptr || !before->is_string() || !after->is_string())
    return false;
  const std::string &a = before->as_string(), &b = after->as_string();
  if (path == "optimizer.type" || path == "scheduler.type") return text::lower(a) == text::lower(b);
  return path == "model.activation" && ops::activation_from_name(a) == ops::activation_from_name(b);
}

std::string shown(const json::Value* value) {
  return value == nullptr ? "(absent)" : value->dump();
}

std::string text_of(const json::Value& object, std::string_view key) {
  const json::Value* value = object.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

fs::path checkpoint_at(const fs::path& path) {
  if (const auto found = checkpoint::newest_at(path)) return *found;
  if (interop::is_foreign(path)) return path;
  throw Error(Error::Kind::Format,
              fmt::format("{} holds no complete checkpoint", path.string()),
              "name a run folder or one of its checkpoints/step-NNNNNNNN");
}

// Another program's configuration has neither tessera's defaults nor all of its keys.
void narrow_to_imported(const checkpoint::Meta& meta,
                        std::vector<std::string>& accepted,
                        std::vector<std::string>& refused) {
  if (meta.extra.find("imported") == nullptr) return;
  accepted.insert(
      accepted.begin(),
      fmt::format("goes on from {}; the data has our order", text_of(meta.extra, "imported")));
  std::vector<std::string> kept;
  for (std::string& line : refused) {
    (line.starts_with("model.") ? kept : accepted).push_back(std::move(line));
  }
  refused = std::move(kept);
}

/// Describes state that the plan's optimizer keeps but the checkpoint lacks.
std::optional<std::string> state_anew(const checkpoint::Checkpoint& opened,
                                      const planner::Plan& plan) {
  // One host's part of a save does not show what the others hold.
  if (plan.run().checkpoint.use_node_local_storage) return std::nullopt;
  std::set<std::string> states;
  std::vector<std::string> names;
  const auto rule = planner::make_rule(plan.recipe());
  for (const auto& info : nn::parameters_of(plan.model().resolved.model)) {
    const auto& frozen = plan.model().rules.frozen;
    // State that begins in the middle of the training is missing by plan.
    if (!info->trainable || (frozen && frozen(info->name)) ||
        plan.model().freezing.set_of(info->name) > 0)
      continue;
    bool missing = false;
    for (const optim::StateSpec& state : rule->state(parallel::facts_of(*info))) {
      if (opened.has(fmt::format("optimizer.{}.{}", state.name, info->name))) continue;
      states.insert(state.name);
      missing = true;
    }
    if (missing) names.push_back(info->name);
  }
  if (names.empty()) return std::nullopt;
  return fmt::format("{} of {} starts from zero: the checkpoint has none",
                     text::join(std::vector(states.begin(), states.end()), ", "),
                     text::join_some(names, ", "));
}

}  // namespace

std::vector<std::string> accepted_changes(const checkpoint::Meta& meta,
                                          const planner::Plan& plan,
                                          const data::Datasets& data) {
  std::vector<std::string> accepted, refused;
  const bool imported = meta.extra.find("imported") != nullptr;
  auto note = [&](const std::string& path, const json::Value* before, const json::Value* after) {
    if (is_idle(path, meta.config, plan.resolved()) || name_one_thing(path, before, after) ||
        (imported && before == nullptr))
      return;
    const std::string line = fmt::format("{}: {} -> {}", path, shown(before), shown(after));
    switch (weight_of(path)) {
      case Weight::Free:
        break;
      case Weight::Accepted:
        accepted.push_back(line);
        break;
      case Weight::Refused:
        refused.push_back(line);
        break;
    }
  };
  differences("", &meta.config, &plan.resolved(), note);
  if (auto change = scaler_change(meta, plan)) accepted.push_back(*std::move(change));
  const std::string old_data = text_of(meta.extra, "data");
  if (!old_data.empty() && old_data != data.fingerprint)
    refused.emplace_back("the training data is another");
  // It does not affect the weights, but evaluations before and after are not comparable.
  const json::Value* old_validation = meta.extra.find("validation");
  if (old_validation != nullptr && old_validation->is_string() &&
      old_validation->as_string() != data.validation_fingerprint) {
    accepted.emplace_back("data.validation: other contents than before");
  }
  // Older checkpoints, in which all ranks are data-parallel, lack "data_ranks".
  const json::Value* ranks = meta.extra.find("data_ranks");
  if (ranks == nullptr) ranks = meta.extra.find("ranks");
  if (ranks != nullptr &&
      ranks->as_integer().value_or(planner::data_ranks_of(plan)) != planner::data_ranks_of(plan) &&
      optim::exchange_needs(plan.recipe().optimizer).compressed) {
    accepted.push_back(
        fmt::format("{} data-parallel ranks -> {}: {}",
                    *ranks->as_integer(),
                    planner::data_ranks_of(plan),
                    planner::data_ranks_of(plan) == 1
                        ? "a rank alone drops what compression left over"
                        : "every rank takes the mean of what compression left over"));
  }
  const std::string old_tokenizer = text_of(meta.extra, "tokenizer");
  if (!old_tokenizer.empty() && old_tokenizer != planner::tokenizer_of(plan)->fingerprint())
    refused.emplace_back("the tokenizer is another");
  const json::Value* base = meta.extra.find("base");
  const std::string old_base = base == nullptr ? "" : text_of(*base, "fingerprint");
  if (plan.model().adapter != nullptr && old_base != plan.model().base_fingerprint) {
    refused.push_back(old_base.empty()
                          ? "model.from: the saved run began without a base"
                          : fmt::format("model.from: the adapter was trained on the weights of {}",
                                        text_of(*base, "path")));
  }
  narrow_to_imported(meta, accepted, refused);
  TESSERA_REQUIRE(
      refused.empty(),
      Config,
      fmt::format("cannot go on from step {}: the run that was saved is another one\n    {}",
                  meta.step,
                  text::join(refused, "\n    ")),
      "choose another run.dir, start from the beginning with --resume never (the old contents are "
      "moved aside), "
      "name a checkpoint of this run with --resume PATH, or take only the weights with model.from");
  return accepted;
}

ResumeFrom resume_from(const std::string& word) {
  if (word == "auto") return {};
  if (word == "never") return {.kind = ResumeFrom::Kind::Never, .path = {}};
  return {.kind = ResumeFrom::Kind::Path, .path = word};
}

ResumePoint find_resume_point(const ResumeFrom& from,
                              const RunFolder& folder,
                              const planner::PlanWithData& plan,
                              const data::Datasets& data,
                              std::shared_ptr<const checkpoint::Checkpoint> copies) {
  ResumePoint point;
  point.course = plan.course();
  if (from.kind == ResumeFrom::Kind::Never) return point;
  if (from.kind == ResumeFrom::Kind::Newest) {
    point.checkpoint = checkpoint::newest(folder.checkpoints());
    if (copies && (!point.checkpoint ||
                   checkpoint::step_of(*point.checkpoint).value_or(0) <= copies->meta().step)) {
      point.checkpoint.reset();
      point.copies = std::move(copies);
    }
    if (!point.exists()) return point;
  } else {
    point.checkpoint = checkpoint_at(from.path);
  }
  TESSERA_REQUIRE(plan.model().adapter == nullptr || point.copies != nullptr ||
                      checkpoint::is_ours(*point.checkpoint),
                  Unsupported,
                  fmt::format("{}: an adapter does not go on from another program's checkpoint",
                              point.checkpoint->string()),
                  "take its weights with model.from, or begin with an adapter of PEFT's: "
                  "adapter.from");
  if (!point.copies) {
    point.opened = std::make_shared<const checkpoint::Checkpoint>(
        interop::open_training(*point.checkpoint, plan));
  }
  const checkpoint::Checkpoint& opened = point.copies ? *point.copies : *point.opened;
  point.position = {opened.meta().step, opened.meta().samples};
  if (const json::Value* evaluations = opened.meta().extra.find("evaluations")) {
    const tasks::EvalOptions& eval = plan.run().eval;
    point.stopped_early = EvalHistory::from(*evaluations, eval).why_stop(eval).value_or("");
  }
  try {
    point.changes = accepted_changes(opened.meta(), plan, data);
    point.course = planner::course_of(plan, data, point.position);
    const CurveChange curve = curve_change(opened.meta(), planner::with(plan, point.course));
    point.changes.insert(point.changes.end(), curve.lines.begin(), curve.lines.end());
    point.course.curve = curve.curve;
    if (!curve.warning.empty()) log::warn(curve.warning);
    if (auto anew = state_anew(opened, plan)) point.changes.push_back(*std::move(anew));
  } catch (const Error& error) {
    throw Error(
        error.kind(), fmt::format("{}: {}", opened.folder().string(), error.what()), error.fix());
  }
  return point;
}

}  // namespace tessera::engine
