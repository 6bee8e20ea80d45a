// SPDX-License-Identifier: Apache-2.0
// Makes a plan from a configuration: reads, completes, checks, and reports all errors at once.
#include <algorithm>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/control_page.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/config/document.h"
#include "tessera/data/mixture.h"
#include "tessera/launch/launch.h"
#include "tessera/models/presets.h"
#include "tessera/nn/block.h"
#include "tessera/planner/adapter.h"
#include "tessera/planner/auto_values.h"
#include "tessera/planner/distillation.h"
#include "tessera/planner/draft.h"
#include "tessera/planner/embedding_noise.h"
#include "tessera/planner/key_dialect.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/model_source.h"
#include "tessera/planner/precision.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/stages.h"
#include "tessera/planner/train_config.h"
#include "tessera/planner/validate.h"
#include "tessera/planner/zero_stage.h"

namespace tessera::planner {
namespace {
constexpr std::int64_t kDefaultLength = 1024;

std::string run_dir_of(const TrainConfig& config, const std::string& name_of_file) {
  if (!config.run.dir.empty()) return config.run.dir;
  const std::string stem = std::filesystem::path(name_of_file).stem().string();
  return "runs/" + (stem.empty() ? "run" : stem);
}

constexpr const char* kGlobal = "train_batch_size";
constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
constexpr const char* kAccumulation = "gradient_accumulation_steps";
constexpr const char* kStage = "zero_optimization.stage";
constexpr const char* kThreads = "run.threads_per_rank";

// The value at a path like "run.dir"; nullptr if there is none.
const json::Value* find_path(const json::Value& source, std::string_view path) {
  const json::Value* at = &source;
  for (const std::string& key : text::split(path, '.')) {
    at = at->is_object() ? at->find(key) : nullptr;
    if (at == nullptr) return nullptr;
  }
  return at;
}

// Removes the value at a path, and an enclosing object that becomes empty, because an empty block
// has another meaning than an absent one.
void erase_path(json::Value& source, std::string_view path) {
  const std::size_t dot = path.find('.');
  const std::string_view key = path.substr(0, dot);
  if (dot != std::string_view::npos) {
    json::Value& inner = *source.find(key);
    erase_path(inner, path.substr(dot + 1));
    if (!inner.members().empty()) return;
  }
  std::erase_if(source.members(), [&](const auto& member) { return member.first == key; });
}

// The part of a resolved configuration that depends on the number of ranks for which it was
// resolved.
class Derived {
 public:
  // Removes the keys of run.derived from `source`, unless they were overwritten since (--set).
  json::Value take(json::Value source, int ranks) {
    const json::Value* const found = find_path(source, "run.derived");
    if (found == nullptr || !found->is_array()) return source;
    const json::Value names = *found;
    for (const json::Value& name : names.items()) {
      const json::Value* const value =
          name.is_string() ? find_path(source, name.as_string()) : nullptr;
      if (value == nullptr || value->place.source != names.place.source) continue;
      // The same micro-batches give the same bits.
      if (name.as_string() == kMicro && still_divides(source, ranks)) {
        micro_was_derived_ = true;
        continue;
      }
      before_.emplace_back(name.as_string(), *value);
      erase_path(source, name.as_string());
    }
    return source;
  }

  // The list for a configuration in which the user set the keys that `origins` knows.
  [[nodiscard]] std::vector<std::string> names(const config::Origins& origins) const {
    std::vector<std::string> out = {kAccumulation};
    if (!origins.given(kMicro) || micro_was_derived_) out.emplace_back(kMicro);
    if (!origins.given("zero_optimization")) out.emplace_back(kStage);
    if (!origins.given(kThreads)) out.emplace_back(kThreads);
    return out;
  }

  // One line per changed value.
  [[nodiscard]] std::vector<std::string> notes(const json::Value& resolved, int ranks) const {
    std::vector<std::string> out;
    for (const auto& [name, before] : before_) {
      const json::Value* const now = find_path(resolved, name);
      if (now == nullptr || *now == before) continue;
      out.push_back(fmt::format("{} was {} and is {} with {} {} (run.derived)",
                                name,
                                before.dump(),
                                now->dump(),
                                ranks,
                                ranks == 1 ? "rank" : "ranks"));
    }
    return out;
  }

 private:
  static bool still_divides(const json::Value& source, int ranks) {
    const json::Value *const global = source.find(kGlobal), *const micro = source.find(kMicro);
    if (global == nullptr || micro == nullptr || !global->is_number() || !micro->is_number())
      return true;
    const std::int64_t step = micro->as_integer().value_or(0) * ranks;
    return step <= 0 || global->as_integer().value_or(0) % step == 0;
  }

  std::vector<std::pair<std::string, json::Value>> before_;
  bool micro_was_derived_ = false;
};

// Makes one plan. A step that fails because of a configuration error adds it to the list, and the
// other steps continue.
class Planner {
 public:
  Planner(int ranks, const std::string& name_of_file, const nn::Model* own)
      : name_of_file_(name_of_file), own_(own) {
    plan_.ranks = ranks;
  }

  Draft make(const json::Value& source, bool model) {
    read(source);
    if (!source.is_object()) problems_.raise();  // nothing else can be checked
    const bool sane_ranks = plan_.ranks >= 1 && plan_.ranks <= kMostRanks;
    check_config(plan_.config, plan_.ranks, problems_, origins_);
    settle_best(plan_.config);
    if (sane_ranks) {
      const std::int64_t unit = plan_.config.parallel.ranks_per_model();
      const bool sized = sizes_are_known(problems_);
      const bool divide = sized && plan_.ranks % unit == 0;
      plan_.data_ranks = divide ? static_cast<int>(plan_.ranks / unit) : 0;
      check_layout(plan_.config, problems_, origins_);
      complete_pipeline(plan_.config.parallel.pipeline, problems_, origins_);
      wrong_product_ = sized && !divide;
    }
    fix_layout();
    if (model) {
      attempt("model.from", [&] { open_source(); });
      attempt("tokenizer", [&] { open_tokenizer(); });
      attempt("task.type", [&] { resolve_task(); });
      if (plan_.tokenizer) attempt("model", [&] { resolve_model(); });
      if (!plan_.model.model.blocks.empty())
        attempt("adapter", [&] { plan_adapter(plan_, problems_, origins_); });
      plan_embedding_noise(plan_);
      if (!plan_.model.model.blocks.empty() && plan_.tokenizer)
        attempt("distill", [&] { plan_distillation(plan_, problems_, origins_); });
    }
    attempt("optimizer.groups", [&] {
      plan_.param_groups = read_param_groups(plan_.config.optimizer.groups, problems_);
      if (plan_.model.model.blocks.empty()) return;
      check_param_groups(plan_.param_groups, plan_.model.model, problems_);
      plan_.weight_layout.frozen = frozen_by(plan_.param_groups);
      plan_.freezing = make_freeze_schedule(plan_.config.optimizer.gradual_unfreezing,
                                            plan_.param_groups,
                                            plan_.model.model,
                                            trained_names(plan_.model.model, plan_.param_groups),
                                            problems_,
                                            origins_);
      if (!plan_.freezing.any()) return;
      plan_.weight_layout.apart = [schedule = plan_.freezing](const std::string& name) {
        return schedule.set_of(name);
      };
      for (std::string& note : freezing_notes(plan_))
        plan_.notes.push_back(std::move(note));
    });
    fill_width(plan_.config.optimizer, plan_.model);
    attempt("optimizer", [&] { check_rule(plan_, problems_, origins_); });
    if (TensorOptions& tensor = plan_.config.parallel.tensor;
        tensor.layout() == TensorLayout::OneD && !plan_.model.model.blocks.empty())
      tensor.share_head = ranks_that_share_a_head(plan_.model.model, tensor.size);
    attempt("parallel.tensor",
            [&] { check_tensor_parallel(plan_, own_ != nullptr, problems_, origins_); });
    attempt("parallel.context",
            [&] { check_context_parallel(plan_, own_ != nullptr, problems_, origins_); });
    check_hybrid_engine(draft_.written, plan_, problems_);
    // This comes last, because it concerns the whole section, and the rules above check which of
    // their keys have problems.
    if (wrong_product_) check_product(plan_.config.parallel, plan_.ranks, problems_, origins_);
    attempt("scheduler", [&] { check_schedule(plan_, problems_, origins_); });
    check_auto(draft_.automatic, problems_);
    for (std::string& note : config_notes(plan_.config, origins_))
      plan_.notes.push_back(std::move(note));
    if (plan_.data_ranks > 0 && !plan_.model.model.blocks.empty()) {
      for (std::string& note : bucket_notes(plan_, origins_))
        plan_.notes.push_back(std::move(note));
    }
    settle_sampling(plan_.config.eval, plan_.model.vocab_size, origins_);
    draft_.derived = derived_.names(origins_);
    if (problems_.empty() && !plan_.model.model.blocks.empty()) {
      fix_recompute();
      for (std::string& note : derived_.notes(resolved_config(draft_), plan_.ranks))
        plan_.notes.push_back(std::move(note));
    }
    return std::move(draft_);
  }

 private:
  void attempt(const std::string& path, const std::function<void()>& step) {
    try {
      step();
    } catch (const Error& error) {
      if (exit_code(error.kind()) == exit_code(Error::Kind::Config)) {
        problems_.add(origins_.place(path), path, error.what(), error.fix());
      } else if (!draft_.failure) {
        draft_.failure = std::current_exception();
      }
    }
  }

  void read(const json::Value& source) {
    json::Value spelled = spell_out_parallel(source);
    models::spell_out_family(spelled);
    tasks::spell_out_task(spelled);
    data::spell_out_sources(spelled);
    const std::int64_t unit = ranks_per_model(spelled);
    draft_.written = key_dialect().with_new_names(
        derived_.take(std::move(spelled), static_cast<int>(plan_.ranks / unit)), problems_);
    check_written(draft_.written, problems_);
    auto taken = key_dialect().take(draft_.written, config_paths(), problems_);
    drop_max_grad_norm(taken.left);
    draft_.automatic = resolve_auto(taken.automatic, taken.left);
    config::read(taken.left, plan_.config, problems_, origins_);
    draft_.accepted = std::move(taken.accepted);
    for (const TakenKey& key : draft_.accepted)
      plan_.notes.push_back(note_of(key));
    for (const AutoValue& value : draft_.automatic) {
      if (value.how.find("Hugging Face") != std::string::npos)
        plan_.notes.push_back(fmt::format("{} is \"auto\": {}", value.path, value.how));
    }
  }

  // check_written() has reported where it belongs; no optimizer has this key.
  static void drop_max_grad_norm(json::Value& source) {
    json::Value* const optimizer = source.is_object() ? source.find("optimizer") : nullptr;
    json::Value* const params =
        optimizer != nullptr && optimizer->is_object() ? optimizer->find("params") : nullptr;
    if (params == nullptr || !params->is_object()) return;
    std::erase_if(params->members(),
                  [](const auto& member) { return member.first == "max_grad_norm"; });
  }

  // Replaces the three batch sizes by those of the section elasticity. Returns false if it has a
  // problem.
  bool take_elastic_batch() {
    TrainConfig& config = plan_.config;
    if (!config.elasticity.enabled) return true;
    if (plan_.data_ranks == 0) return false;
    for (const char* key : {kGlobal, kMicro, kAccumulation}) {
      if (problems_.concern(key)) return true;  // the key is given as well, which is refused
    }
    const auto batch =
        elastic_batch(config.elasticity, plan_.ranks, plan_.data_ranks, problems_, origins_);
    if (!batch) return false;
    config.train_batch_size = batch->global;
    config.train_micro_batch_size_per_gpu = batch->micro;
    config.gradient_accumulation_steps.reset();
    return true;
  }

  // If the ranks do not divide evenly, reports only a missing batch size.
  void fix_batch() {
    TrainConfig& config = plan_.config;
    if (!take_elastic_batch()) return;
    // check_auto() reports a batch size that nothing defines.
    const bool said = config.train_batch_size || config.train_micro_batch_size_per_gpu ||
                      !has_auto_batch(draft_.automatic);
    if (!said) return;
    if (plan_.data_ranks == 0) {
      if (says_batch(config, problems_, origins_)) resolve_auto_batch(draft_.automatic);
      return;
    }
    const auto sizes = solve_batch(config, plan_.data_ranks, problems_, origins_);
    if (!sizes) return;
    resolve_auto_batch(draft_.automatic);
    plan_.global_batch = sizes->global;
    plan_.micro_batch = sizes->micro;
    plan_.accumulation = sizes->accumulation;
    if (config.rampup_batch_size.is_null()) return;
    plan_.batch_ramp = optim::read_batch_ramp(config.rampup_batch_size,
                                              "rampup_batch_size",
                                              sizes->global,
                                              sizes->micro * plan_.data_ranks,
                                              problems_);
  }

  void fix_layout() {
    TrainConfig& config = plan_.config;
    fix_batch();
    // A block without a stage has DeepSpeed's default: stage 0. Without a block the update is
    // sharded, because that costs nothing.
    const bool block = origins_.given("zero_optimization");
    plan_.zero_stage = static_cast<int>(
        config.zero_optimization.stage.value_or(!block && plan_.data_ranks > 1 ? 1 : 0));
    const ExchangeNeeds needs = exchange_needs(config.optimizer);
    if (needs.local_weights && plan_.zero_stage == 1) plan_.zero_stage = 0;
    if (needs.compressed) config.gradient_reduction = parallel::Reduction::Once;
    resolve_precision(plan_, problems_, origins_);
    fix_sharding();
    check_pipeline(plan_, problems_, origins_);
    plan_.schedule = parallel::pipeline_schedules().get(config.parallel.pipeline.schedule);
    plan_.threads = static_cast<int>(
        config.run.threads_per_rank.value_or(launch::threads_per_rank(plan_.ranks)));
    plan_.run_dir = run_dir_of(config, name_of_file_);
  }

  // The options of the policies between blocks.
  void fix_sharding() {
    const TrainConfig& config = plan_.config;
    const ZeroOptions& zero = config.zero_optimization;
    parallel::WeightOptions& weights = plan_.weight_layout;
    weights.working = plan_.working;
    weights.sequence = config.parallel.sequence;
    weights.tensor = tensor_mode(config.parallel.tensor);
    weights.context = config.parallel.context.mode;
    plan_.shard_ranks = static_cast<int>(
        std::min<std::int64_t>(zero.group().value_or(plan_.data_ranks), plan_.data_ranks));
    set_zero_stage(plan_, plan_.zero_stage);
    set_zero_sizes(plan_);
    weights.persistent = zero.stage3_model_persistence_threshold.value_or(weights.persistent);
    if (zero.zero_quantized_weights.value_or(false))
      weights.trained_gather = weights.frozen_gather = parallel::GatherForm::Int8;
    if (zero.zero_quantized_nontrainable_weights.value_or(false))
      weights.frozen_gather = parallel::GatherForm::Int8;
    parallel::GatherOptions& gather = plan_.gather;
    gather.max_live = zero.stage3_max_live_parameters.value_or(gather.max_live);
    gather.max_reuse_distance = zero.stage3_max_reuse_distance.value_or(gather.max_reuse_distance);
    plan_.reduction.mode = config.gradient_reduction;
    plan_.reduction.accumulate = config.data_types.grad_accum_dtype.value_or(
        plan_.kept.masters == DType::BF16 ? DType::BF16 : DType::F32);
    plan_.reduction.comm_dtype = config.gradient_travel();
    plan_.reduction.feedback = complete_feedback(plan_.config.zero_optimization);
    plan_.reduction.sparse_rows = weights.tables_apart = config.sparse_gradients;
    plan_.reduction.max_micros = static_cast<int>(plan_.accumulation);
    plan_.save_in_background = config.checkpoint.async;
  }

  // If the configuration defines the best evaluation, or stops without gains, the best is saved by
  // default.
  static void settle_best(TrainConfig& config) {
    const EvalOptions& eval = config.eval;
    const bool asked = !eval.best.is_null() || eval.stops_early();
    config.checkpoint.best = config.checkpoint.best.value_or(asked && eval.when().any());
  }

  // The blocks that are recomputed; never the objective.
  void fix_recompute() {
    const RecomputeOptions& options = plan_.config.activation_checkpointing;
    const RecomputeKind kind = options.kind();
    plan_.recompute.regions = kind == RecomputeKind::Selective;
    plan_.recompute.blocks.assign(plan_.model.model.blocks.size(), false);
    if (kind == RecomputeKind::Auto) recompute_what_memory_needs(plan_, launch::available_memory());
    if (kind != RecomputeKind::Full) return;
    for (std::size_t b = 0; b < plan_.recompute.blocks.size(); ++b)
      plan_.recompute.blocks[b] = b % static_cast<std::size_t>(options.every_n) == 0;
  }

  void open_source() {
    const DistillOptions& distill = plan_.config.distill;
    // plan_distillation() reports layers without a teacher.
    if (distill.teacher) layers_ = teacher_layers(distill, problems_);
    const bool by_layers = !layers_.empty();
    if (by_layers && plan_.config.model->from) {
      problems_.add(origins_.place("distill.layers"),
                    "distill.layers",
                    "the model cannot begin with model.from and with layers of the teacher",
                    "remove one of them");
    }
    if (!plan_.config.model->from && !by_layers) return;
    const std::string from = by_layers ? *distill.teacher : *plan_.config.model->from;
    source_ = open_model_source(from);
    if (source_->bf16 && plan_.working == DType::F16) {
      plan_.notes.push_back(fmt::format(
          "the weights of {} were made in bf16: what they compute may lie beyond 65504, "
          "which is infinite in fp16; where the loss becomes so, use bf16",
          from));
    }
    models::ModelOptions options = source_->model;
    if (by_layers) options->num_layers = std::ssize(layers_);
    plan_.config.model =
        models::merge_options(plan_.config.model, std::move(options), problems_, origins_);
  }

  void open_tokenizer() {
    // Without the source's model, a default tokenizer would only add a misleading message.
    const bool from = plan_.config.model->from || !layers_.empty();
    if (from && !source_) return;
    const bool own = source_ && !origins_.given("tokenizer");
    if (own && !source_->hugging_face) plan_.config.tokenizer = source_->tokenizer;
    // The resolved configuration names the files of a folder's own tokenizer, so that it does not
    // depend on the rules for folders.
    if (own && source_->hugging_face)
      plan_.config.tokenizer =
          data::tokenizer_options_of(std::filesystem::absolute(source_->folder));
    plan_.tokenizer =
        own ? source_tokenizer(*source_) : data::make_tokenizer(plan_.config.tokenizer);
    // Makes paths absolute, so that the files are found from any folder.
    for (std::string* const file :
         {&plan_.config.tokenizer.vocab, &plan_.config.tokenizer.merges}) {
      if (!file->empty()) *file = std::filesystem::absolute(*file).string();
    }
  }

  void resolve_task() {
    if (problems_.concern("task.type")) return;  // there is no task of that name
    plan_.task = tasks::make_task(plan_.config.task, problems_);
    if (plan_.task)
      tasks::check_data(*plan_.task, plan_.config.task, plan_.config.data, problems_, origins_);
    if (plan_.task && !problems_.concern("eval.best"))
      check_answers(
          plan_.config.eval, plan_.config.task.type, plan_.config.data, problems_, origins_);
  }

  // Describes the program's own model, as far as possible.
  models::Resolved described(const nn::Model& model) {
    if (origins_.given("model")) {
      problems_.add(origins_.place("model"),
                    "model",
                    "the program brings a model of its own",
                    "remove the section");
    }
    models::Resolved out;
    out.model = model;
    nn::declare_all(out.model);
    out.tokenizer_size = out.vocab_size = plan_.tokenizer->size();
    out.num_layers = static_cast<std::int64_t>(model.blocks.size());
    out.description = json::Value::object();
    for (const auto& info : nn::parameters_of(out.model)) {
      out.num_parameters += info->numel();
      json::Value shape = json::Value::array({});
      for (const std::int64_t size : info->shape)
        shape.items().push_back(json::Value::integer(size));
      out.description[info->name] = std::move(shape);
    }
    return out;
  }

  // The objective with which the configured task trains a family's trunk.
  [[nodiscard]] models::ObjectiveChoice objective() const {
    if (plan_.task == nullptr) return {};
    return {plan_.task->objective(), plan_.task->objective_options(plan_.config.data)};
  }

  void resolve_model() {
    const TrainConfig& config = plan_.config;
    const std::size_t before = problems_.list().size();
    plan_.model = own_ != nullptr ? described(*own_)
                                  : models::resolve(config.model,
                                                    plan_.tokenizer->size(),
                                                    config.data.sequence_length,
                                                    problems_,
                                                    origins_,
                                                    objective());
    nn::declare_all(plan_.model.model);
    resolve_auto_sizes(plan_.model.hidden_size, draft_.automatic, plan_.config.zero_optimization);
    set_zero_sizes(plan_);
    plan_.sequence_length = config.data.sequence_length.value_or(
        plan_.model.max_positions > 0 ? plan_.model.max_positions : kDefaultLength);
    if (plan_.task != nullptr && own_ == nullptr)
      plan_.sample = plan_.task->tensors(plan_.sequence_length);
    if (problems_.list().size() == before) {
      check_model(config, plan_.model, problems_, origins_);
    }
    if (own_ != nullptr || knows_size(config.model, "num_layers", problems_)) {
      plan_.stages = place_blocks(
          config.parallel.pipeline, plan_.model.model, plan_.sequence_length, problems_, origins_);
      if (measures_blocks(config.parallel.pipeline)) {
        plan_.notes.emplace_back(
            "parallel.pipeline.partition profile: these stages are a prediction; the ranks measure "
            "the blocks when they start");
      }
    }
    const bool whole = plan_.data_ranks == 1 || plan_.reduction.comm_dtype != DType::F32 ||
                       plan_.reduction.accumulate != DType::F32;
    if (config.sparse_gradients && !whole && plan_.model.tied_head) {
      plan_.notes.emplace_back(
          "sparse_gradients does not pay for the tied table's use by the head, whose gradient is "
          "dense; the embedding's travels as rows without it, unless pipeline stages part the two");
    }
  }

  std::string name_of_file_;
  const nn::Model* own_;
  bool wrong_product_ = false;
  Draft draft_;
  Derived derived_;
  Plan& plan_ = draft_.plan;
  config::Problems& problems_ = draft_.problems;
  config::Origins& origins_ = draft_.origins;
  std::optional<ModelSource>& source_ = draft_.source;
  std::vector<std::int64_t>& layers_ = draft_.layers;
};

}  // namespace

const std::vector<std::string>& config_paths() {
  static const std::vector<std::string> paths = config::paths_of(config::document(TrainConfig()));
  return paths;
}

Draft make_draft(const json::Value& source,
                 int ranks,
                 const std::string& name_of_file,
                 bool model,
                 const nn::Model* own) {
  return Planner(ranks, name_of_file, own).make(source, model);
}

json::Value resolved_config(const Draft& draft, bool model) {
  const Plan& plan = draft.plan;
  TrainConfig config = plan.config;
  if (model) config.data.sequence_length = plan.sequence_length;
  if (model && config.data.pack)
    config.data.stride = config.data.stride.value_or(plan.sequence_length);
  if (plan.global_batch > 0) {
    config.train_batch_size = plan.global_batch;
    config.train_micro_batch_size_per_gpu = plan.micro_batch;
    config.gradient_accumulation_steps = plan.accumulation;
  }
  config.zero_optimization.stage = plan.zero_stage;
  config.run.dir = plan.run_dir;
  config.run.threads_per_rank = plan.threads;
  config.run.derived = draft.derived;
  // The batch keys above are those that elasticity chose.
  if (config.elasticity.enabled) config.elasticity.ignore_non_elastic_batch_info = true;
  config.fp16 = config.fp16.completed(plan.scaling_stage);
  if (!config.trainer.max_steps && !config.trainer.epochs) config.trainer.epochs = 1.0;
  if (config.scheduler.type.empty()) config.scheduler.type = "constant";
  config.optimizer.params = complete_optimizer_params(config.optimizer);
  if (config.scheduler.params.is_null()) config.scheduler.params = json::Value::object();
  json::Value out = config::write(config);
  if (!model) return out;
  const auto drop = [](json::Value& object, std::string_view key) {
    std::erase_if(object.members(), [&](const auto& member) { return member.first == key; });
  };
  if (!plan.config.adapter.enabled()) drop(out, "adapter");
  if (!plan.config.distill.teacher) drop(out, "distill");
  if (!config.zero_optimization.zeropp_loco_param.on())
    drop(out["zero_optimization"], "zeropp_loco_param");
  out["model"] = plan.model.description;
  if (config.model->from) out["model"]["from"] = json::Value::string(*config.model->from);
  return out;
}

namespace {
Plan finished(Draft draft) {
  draft.problems.raise();
  if (draft.failure) std::rethrow_exception(draft.failure);
  if (draft.source) {
    const models::Resolved& begun = draft.plan.base ? *draft.plan.base : draft.plan.model;
    const auto seed = static_cast<std::uint64_t>(draft.plan.config.trainer.seed);
    draft.plan.weights =
        draft.layers.empty()
            ? first_weights(*draft.source, begun, seed, draft.plan.notes)
            : weights_of_layers(*draft.source, draft.layers, begun, seed, draft.plan.notes);
  }
  plan_adapter_weights(draft.plan);
  draft.plan.resolved = resolved_config(draft);
  return std::move(draft.plan);
}

}  // namespace

Plan make_plan(const json::Value& source, int ranks, const std::string& name_of_file) {
  return finished(make_draft(source, ranks, name_of_file));
}

Plan make_plan(const json::Value& source,
               int ranks,
               const std::string& name_of_file,
               const nn::Model& model) {
  return finished(make_draft(source, ranks, name_of_file, /*model=*/true, &model));
}

}  // namespace tessera::planner
