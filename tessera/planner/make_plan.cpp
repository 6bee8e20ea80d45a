// SPDX-License-Identifier: Apache-2.0
// Makes a plan from a configuration: reads, completes, checks, and reports all errors at once.
#include "tessera/planner/make_plan.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/control_page.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/config/document.h"
#include "tessera/config/key_dialect.h"
#include "tessera/config/model_names.h"
#include "tessera/data/mixture.h"
#include "tessera/hosts/detect_launcher.h"
#include "tessera/models/distillation.h"
#include "tessera/models/model_source.h"
#include "tessera/models/own_model.h"
#include "tessera/models/presets.h"
#include "tessera/nn/block.h"
#include "tessera/nn/embedding_noise.h"
#include "tessera/optim/make_rule.h"
#include "tessera/parallel/bucket_notes.h"
#include "tessera/parallel/offload_rules.h"
#include "tessera/parallel/pipeline/pipeline_rules.h"
#include "tessera/parallel/pipeline/placement.h"
#include "tessera/parallel/rank_product.h"
#include "tessera/parallel/tensor_rules.h"
#include "tessera/parallel/zero_rules.h"
#include "tessera/planner/adapter.h"
#include "tessera/planner/auto_values.h"
#include "tessera/planner/config_paths.h"
#include "tessera/planner/derived_keys.h"
#include "tessera/planner/distillation.h"
#include "tessera/planner/draft.h"
#include "tessera/planner/idle_keys.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/plan_parts.h"
#include "tessera/planner/precision.h"
#include "tessera/planner/quantization_aware.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/train_config.h"
#include "tessera/planner/trained_tensors.h"
#include "tessera/planner/validate.h"
#include "tessera/tasks/embedding_noise.h"
#include "tessera/tasks/saved_classes.h"

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

// Makes one plan. A step that fails because of a configuration error adds it to the list, and the
// other steps continue.
class Planner {
 public:
  Planner(int ranks, const std::string& name_of_file, const nn::Model* own)
      : name_of_file_(name_of_file), own_(own) {
    draft_.ranks = ranks;
  }

  Draft make(const json::Value& source, bool model) {
    read(source);
    if (!source.is_object()) problems_.raise();  // nothing else can be checked
    const bool sane_ranks = draft_.ranks >= 1 && draft_.ranks <= kMostRanks;
    check_config(config_, draft_.ranks, problems_, origins_);
    settle_best(config_);
    if (sane_ranks) {
      const std::int64_t unit = config_.parallel.ranks_per_model();
      const bool sized = parallel::sizes_are_known(problems_);
      const bool divide = sized && draft_.ranks % unit == 0;
      layout_.data_ranks = divide ? static_cast<int>(draft_.ranks / unit) : 0;
      parallel::check_grid(config_.parallel.tensor, problems_, origins_);
      parallel::complete_pipeline(config_.parallel.pipeline, problems_, origins_);
      wrong_product_ = sized && !divide;
    }
    fix_layout();
    if (model) {
      attempt("model.from", [&] { open_source(); });
      attempt("tokenizer", [&] { open_tokenizer(); });
      attempt("task.type", [&] { resolve_task(); });
      if (data_.tokenizer) attempt("model", [&] { resolve_model(); });
      if (!model_.resolved.model.blocks.empty())
        attempt("adapter", [&] {
          plan_adapter(config_.adapter, model_, layout_, notes_, problems_, origins_);
        });
      attempt("qat",
              [&] { plan_quantization_aware(config_, named(), notes_, problems_, origins_); });
      if (const auto* noise = dynamic_cast<const tasks::EmbeddingNoise*>(data_.task.get());
          noise != nullptr && noise->noise_alpha() > 0.0)
        nn::add_embedding_noise(model_.resolved.model, noise->noise_alpha(), data_.sequence_length);
      if (!model_.resolved.model.blocks.empty() && data_.tokenizer)
        attempt("distill", [&] {
          plan_distillation(
              config_.distill, data_, layout_.working, model_, notes_, problems_, origins_);
        });
    }
    attempt("optimizer.groups", [&] {
      model_.groups = parallel::read_param_groups(config_.optimizer.groups, problems_);
      if (model_.resolved.model.blocks.empty()) return;
      freeze_others(config_.optimizer.trained, named(), model_.groups, notes_, problems_, origins_);
      parallel::check_param_groups(model_.groups, model_.resolved.model, problems_);
      model_.rules.frozen = parallel::frozen_by(model_.groups);
      model_.freezing = parallel::make_freeze_schedule(
          config_.optimizer.gradual_unfreezing,
          model_.groups,
          model_.resolved.model,
          parallel::trained_names(model_.resolved.model, model_.groups),
          problems_,
          origins_);
      if (!model_.freezing.any()) return;
      model_.rules.apart = [schedule = model_.freezing](const std::string& name) {
        return schedule.set_of(name);
      };
      for (std::string& note : parallel::freezing_notes(model_.freezing))
        notes_.push_back(std::move(note));
    });
    optim::fill_width(config_.optimizer, model_.resolved.hidden_size);
    attempt("optimizer", [&] { check_rule(config_, model_, layout_.kept, problems_, origins_); });
    if (const parallel::TensorOptions& tensor = config_.parallel.tensor;
        tensor.layout() == parallel::TensorLayout::OneD && !model_.resolved.model.blocks.empty())
      share_layers();
    attempt("tiling", [&] {
      const bool gathers = layout_.zero_stage == 3 && layout_.data_ranks > 1;
      model_.rules.tiles = divide_weights(
          config_, model_.resolved, model_.rules, gathers, notes_, problems_, origins_);
    });
    const CheckedModel checked = {.model = model_.resolved,
                                  .own = own_ != nullptr,
                                  .sequence_length = data_.sequence_length,
                                  .micro_batch = layout_.micro_batch};
    attempt("parallel.tensor",
            [&] { check_tensor_parallel(config_, checked, problems_, origins_); });
    attempt("parallel.context",
            [&] { check_context_parallel(config_, checked, problems_, origins_); });
    attempt("parallel", [&] { divide_experts(config_, checked, layout_, problems_, origins_); });
    check_hybrid_engine(draft_.written, data_, problems_);
    // This comes last: the rules above check which of their keys have problems.
    if (wrong_product_)
      parallel::check_product(config_.parallel, draft_.ranks, problems_, origins_);
    attempt("scheduler", [&] { check_schedule(config_, recipe_, problems_, origins_); });
    check_auto(draft_.automatic, problems_);
    for (std::string& note : config_notes(config_, origins_))
      notes_.push_back(std::move(note));
    if (layout_.data_ranks > 0 && !model_.resolved.model.blocks.empty()) {
      const parallel::BucketLayout sizes = {.tensor_ranks = layout_.grid.size(),
                                            .data_ranks = layout_.data_ranks,
                                            .gathers_weights = layout_.gathers_weights(),
                                            .persistence_threshold = layout_.persistence_threshold,
                                            .persistent = layout_.persistent};
      for (std::string& note : parallel::bucket_notes(
               config_.zero_optimization, sizes, model_.resolved.model, origins_))
        notes_.push_back(std::move(note));
    }
    tasks::settle_sampling(config_.eval, model_.resolved.vocab_size, origins_);
    draft_.derived = derived_.names(origins_);
    if (problems_.empty() && !model_.resolved.model.blocks.empty()) {
      fix_recompute();
      for (std::string& note : derived_.notes(resolved_config(draft_), draft_.ranks))
        notes_.push_back(std::move(note));
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
    json::Value spelled = config::key_dialect().spell_out(source);
    models::spell_out_family(spelled);
    tasks::spell_out_task(spelled);
    data::spell_out_sources(spelled);
    const std::int64_t unit = parallel::ranks_per_model(spelled);
    draft_.written = config::key_dialect().with_new_names(
        derived_.take(std::move(spelled), static_cast<int>(draft_.ranks / unit)), problems_);
    check_written(draft_.written, problems_);
    auto taken = config::key_dialect().take(draft_.written, config_paths(), problems_);
    drop_max_grad_norm(taken.left);
    draft_.automatic = resolve_auto(taken.automatic, taken.left);
    config::read(taken.left, config_, problems_, origins_);
    draft_.accepted = std::move(taken.accepted);
    for (const config::TakenKey& key : draft_.accepted)
      notes_.push_back(config::note_of(key));
    for (const AutoValue& value : draft_.automatic) {
      if (value.how.find("Hugging Face") != std::string::npos)
        notes_.push_back(fmt::format("{} is \"auto\": {}", value.path, value.how));
    }
  }

  // Replaces the three batch sizes by those of the section elasticity. Returns false if it has a
  // problem.
  bool take_elastic_batch() {
    TrainConfig& config = config_;
    if (!config.elasticity.enabled) return true;
    if (layout_.data_ranks == 0) return false;
    for (const char* key : {kGlobal, kMicro, kAccumulation}) {
      if (problems_.concern(key)) return true;  // the key is given as well, which is refused
    }
    const auto batch = parallel::elastic_batch(
        config.elasticity, draft_.ranks, layout_.data_ranks, problems_, origins_);
    if (!batch) return false;
    config.train_batch_size = batch->global;
    config.train_micro_batch_size_per_gpu = batch->micro;
    config.gradient_accumulation_steps.reset();
    return true;
  }

  // If the ranks do not divide evenly, reports only a missing batch size.
  void fix_batch() {
    TrainConfig& config = config_;
    if (!take_elastic_batch()) return;
    // check_auto() reports a batch size that nothing defines.
    const bool said = config.train_batch_size || config.train_micro_batch_size_per_gpu ||
                      !has_auto_batch(draft_.automatic);
    if (!said) return;
    if (layout_.data_ranks == 0) {
      if (says_batch(config, problems_, origins_)) resolve_auto_batch(draft_.automatic);
      return;
    }
    const auto sizes = solve_batch(config, layout_.data_ranks, problems_, origins_);
    if (!sizes) return;
    resolve_auto_batch(draft_.automatic);
    recipe_.global_batch = sizes->global;
    layout_.micro_batch = sizes->micro;
    layout_.accumulation = sizes->accumulation;
    if (config.rampup_batch_size.is_null()) return;
    recipe_.ramp = optim::read_batch_ramp(config.rampup_batch_size,
                                          "rampup_batch_size",
                                          sizes->global,
                                          sizes->micro * layout_.data_ranks,
                                          problems_);
  }

  void fix_layout() {
    TrainConfig& config = config_;
    fix_batch();
    // A block without a stage has DeepSpeed's default: stage 0. Without a block the update is
    // sharded, because that costs nothing.
    const bool block = origins_.given("zero_optimization");
    layout_.zero_stage = static_cast<int>(
        config.zero_optimization.stage.value_or(!block && layout_.data_ranks > 1 ? 1 : 0));
    const optim::ExchangeNeeds needs = optim::exchange_needs(config.optimizer);
    if (needs.local_weights && layout_.zero_stage == 1) layout_.zero_stage = 0;
    if (needs.compressed) config.gradient_reduction = parallel::Reduction::Once;
    resolve_precision(config_, layout_, recipe_, notes_, problems_, origins_);
    fix_sharding();
    // If the batch could not be solved, the given value counts.
    const std::int64_t micros = layout_.accumulation > 0
                                    ? layout_.accumulation
                                    : config.gradient_accumulation_steps.value_or(0);
    parallel::check_pipeline(config.parallel, micros, config.optimizer, problems_, origins_);
    layout_.schedule = config.parallel.pipeline.schedule;
    layout_.partition = config.parallel.pipeline.partition;
    layout_.threads = static_cast<int>(
        config.run.threads_per_rank.value_or(hosts::threads_per_rank(draft_.ranks)));
    draft_.run.dir = run_dir_of(config, name_of_file_);
  }

  // The options of the policies between blocks.
  void fix_sharding() {
    const TrainConfig& config = config_;
    const parallel::ZeroOptions& zero = config.zero_optimization;
    layout_.tensor = config.parallel.tensor.layout();
    layout_.grid = config.parallel.tensor.grid();
    layout_.sequence = config.parallel.sequence;
    layout_.context = static_cast<int>(config.parallel.context.size);
    layout_.context_mode = config.parallel.context.mode;
    layout_.scatter_gather = config.parallel.pipeline.scatter_gather;
    layout_.shard_ranks = static_cast<int>(
        std::min<std::int64_t>(zero.group().value_or(layout_.data_ranks), layout_.data_ranks));
    take_sizes();
    layout_.persistent = zero.stage3_model_persistence_threshold.value_or(layout_.persistent);
    if (zero.zero_quantized_weights.value_or(false))
      layout_.trained_gather = layout_.frozen_gather = parallel::GatherForm::Int8;
    if (zero.zero_quantized_nontrainable_weights.value_or(false))
      layout_.frozen_gather = parallel::GatherForm::Int8;
    parallel::GatherOptions& gather = layout_.gather;
    gather.max_live = zero.stage3_max_live_parameters.value_or(gather.max_live);
    gather.max_reuse_distance = zero.stage3_max_reuse_distance.value_or(gather.max_reuse_distance);
    layout_.reduction = config.gradient_reduction;
    layout_.sums = config.data_types.grad_accum_dtype.value_or(
        layout_.kept.masters == DType::BF16 ? DType::BF16 : DType::F32);
    layout_.sent = config.gradient_travel();
    layout_.feedback = parallel::complete_feedback(config_.zero_optimization);
    layout_.sparse_rows = config.sparse_gradients;
    std::tie(layout_.offload, layout_.weight_offload, layout_.activation_offload) =
        parallel::complete_offload(config_.zero_optimization, config_.activation_checkpointing);
    const parallel::HostPlaces host = parallel::host_places(offload_choice(config_));
    layout_.states_on_host = host.states;
    layout_.weights_on_host = host.weights;
    layout_.host_activations = host.activations;
    // What is clipped, scaled or skipped is known only after the backward pass. Weights on a disk
    // are on their way for the backward pass meanwhile.
    layout_.streamed_updates = layout_.offload && !layout_.weight_offload &&
                               config.gradient_clipping == 0 && config.gradient_clip_value == 0 &&
                               layout_.working != DType::F16 &&
                               config.trainer.on_nonfinite == optim::OnNonfinite::Stop &&
                               !offload_choice(config_).on_device();
    layout_.early_updates =
        layout_.states_on_host && config_.zero_optimization.offload_optimizer.super_offload;
    layout_.partition_activations = config.activation_checkpointing.partition_activations;
    layout_.disk = config.aio.tier();
    draft_.run.saves_in_background = config.checkpoint.async;
  }

  // The sizes that may be "auto", which are known with the model.
  void take_sizes() {
    const parallel::ZeroOptions& zero = config_.zero_optimization;
    layout_.persistence_threshold =
        zero.stage3_param_persistence_threshold.value_or(parallel::kPersistenceThreshold);
    layout_.gather.prefetch = zero.stage3_prefetch_bucket_size;
    layout_.bucket = zero.reduce_bucket_size.value_or(layout_.bucket);
  }

  // The ranks in a row that share the layers of the model.
  void share_layers() {
    parallel::TensorOptions& tensor = config_.parallel.tensor;
    tensor.share_head = parallel::ranks_that_share_a_head(model_.resolved.model, tensor.size);
    layout_.grid = tensor.grid();
  }

  // By default the best is saved if the configuration defines it, or stops without gains.
  static void settle_best(TrainConfig& config) {
    const tasks::EvalOptions& eval = config.eval;
    const bool asked = !eval.best.is_null() || eval.stops_early();
    config.checkpoint.best = config.checkpoint.best.value_or(asked && eval.when().any());
  }

  // The blocks that are recomputed; never the objective.
  void fix_recompute() {
    const parallel::RecomputeOptions& options = config_.activation_checkpointing;
    const parallel::RecomputeKind kind = options.kind();
    layout_.recompute.regions = kind == parallel::RecomputeKind::Selective;
    layout_.recompute.blocks.assign(model_.resolved.model.blocks.size(), false);
    if (kind == parallel::RecomputeKind::Auto) {
      layout_.recompute.blocks =
          blocks_to_recompute(Plan(parts_of(draft_)), launch::available_memory(), notes_);
    }
    if (kind != parallel::RecomputeKind::Full) return;
    for (std::size_t b = 0; b < layout_.recompute.blocks.size(); ++b)
      layout_.recompute.blocks[b] = b % static_cast<std::size_t>(options.every_n) == 0;
  }

  NamedModel named() { return {model_.resolved, model_.options.family(), bool(model_.adapter)}; }

  void open_source() {
    const models::DistillOptions& distill = config_.distill;
    // plan_distillation() reports layers without a teacher.
    if (distill.teacher) layers_ = models::teacher_layers(distill, problems_);
    const bool by_layers = !layers_.empty();
    if (by_layers && config_.model->from) {
      problems_.add(origins_.place("distill.layers"),
                    "distill.layers",
                    "the model cannot begin with model.from and with layers of the teacher",
                    "remove one of them");
    }
    if (!config_.model->from && !by_layers) return;
    const std::string from = by_layers ? *distill.teacher : *config_.model->from;
    source_ = models::open_model_source(from);
    const char* const key = by_layers ? "distill.teacher" : "model.from";
    if (!source_->chosen.empty()) notes_.push_back(key + (": reads " + source_->chosen));
    if (source_->bf16 && layout_.working == DType::F16) {
      notes_.push_back(fmt::format(
          "the weights of {} were made in bf16: what they compute may lie beyond 65504, "
          "which is infinite in fp16; where the loss becomes so, use bf16",
          from));
    }
    models::ModelOptions options = source_->model;
    if (by_layers) options->num_layers = std::ssize(layers_);
    config_.model = models::merge_options(config_.model, std::move(options), problems_, origins_);
  }

  void open_tokenizer() {
    // Without the source's model, a default tokenizer would only add a misleading message.
    const bool from = config_.model->from || !layers_.empty();
    if (from && !source_) return;
    const bool own = source_ && !origins_.given("tokenizer");
    if (own && !source_->hugging_face) config_.tokenizer = source_->tokenizer;
    // The resolved configuration names the files of a folder's own tokenizer, so that it does not
    // depend on the rules for folders.
    if (own && source_->hugging_face)
      config_.tokenizer = text::tokenizer_options_of(std::filesystem::absolute(source_->folder));
    data_.tokenizer =
        own ? models::source_tokenizer(*source_) : text::make_tokenizer(config_.tokenizer);
    // Makes paths absolute, so that the files are found from any folder.
    for (std::string* const file : {&config_.tokenizer.vocab, &config_.tokenizer.merges}) {
      if (!file->empty()) *file = std::filesystem::absolute(*file).string();
    }
  }

  void resolve_task() {
    if (problems_.concern("task.type")) return;  // there is no task of that name
    TrainConfig& config = config_;
    std::optional<tasks::SavedObjective> saved;
    if (source_) saved = {source_->objective.name, source_->objective.options};
    data_.task =
        tasks::make_task_of(saved ? &*saved : nullptr, config.data, config.task, problems_, notes_);
    if (data_.task) tasks::check_data(*data_.task, config.task, config.data, problems_, origins_);
    if (data_.task && !problems_.concern("eval.best"))
      tasks::check_answers(config.eval, *data_.task, config.data, problems_, origins_);
  }

  // The objective with which the configured task trains a family's trunk.
  [[nodiscard]] models::ObjectiveChoice objective() const {
    if (data_.task == nullptr) return {};
    return {data_.task->objective(), data_.task->objective_options(config_.data)};
  }

  void resolve_model() {
    model_.options = config_.model;
    const TrainConfig& config = config_;
    const std::size_t before = problems_.list().size();
    if (own_ != nullptr && origins_.given("model")) {
      problems_.add(origins_.place("model"),
                    "model",
                    "the program brings a model of its own",
                    "remove the section");
    }
    model_.resolved = own_ != nullptr ? models::describe_own(*own_, data_.tokenizer->size())
                                      : models::resolve(config.model,
                                                        data_.tokenizer->size(),
                                                        config.data.sequence_length,
                                                        problems_,
                                                        origins_,
                                                        objective());
    nn::declare_all(model_.resolved.model);
    resolve_auto_sizes(model_.resolved.hidden_size, draft_.automatic, config_.zero_optimization);
    take_sizes();
    data_.sequence_length = config.data.sequence_length.value_or(
        model_.resolved.max_positions > 0 ? model_.resolved.max_positions : kDefaultLength);
    if (data_.task != nullptr && own_ == nullptr)
      data_.sample = data_.task->tensors(data_.sequence_length);
    if (problems_.list().size() == before) {
      check_model(config, model_.resolved, problems_, origins_);
    }
    if (own_ != nullptr || knows_size(config.model, "num_layers", problems_)) {
      layout_.stages = parallel::place_blocks(config.parallel.pipeline,
                                              model_.resolved.model,
                                              data_.sequence_length,
                                              problems_,
                                              origins_);
      if (layout_.measures_blocks()) {
        notes_.emplace_back(
            "parallel.pipeline.partition profile: these stages are a prediction; the ranks measure "
            "the blocks when they start");
      }
    }
    const bool whole =
        layout_.data_ranks == 1 || layout_.sent != DType::F32 || layout_.sums != DType::F32;
    if (config.sparse_gradients && !whole && model_.resolved.tied_head) {
      notes_.emplace_back(
          "sparse_gradients does not pay for the tied table's use by the head, whose gradient is "
          "dense; the embedding's travels as rows without it, unless pipeline stages part the two");
    }
  }

  std::string name_of_file_;
  const nn::Model* own_;
  bool wrong_product_ = false;
  Draft draft_;
  DerivedKeys derived_;
  TrainConfig& config_ = draft_.config;
  parallel::Layout& layout_ = draft_.layout;
  ModelPlan& model_ = draft_.model;
  DataPlan& data_ = draft_.data;
  Recipe& recipe_ = draft_.recipe;
  std::vector<std::string>& notes_ = draft_.notes;
  const InputLog log_{draft_.inputs};
  config::Problems& problems_ = draft_.problems;
  config::Origins& origins_ = draft_.origins;
  std::optional<models::ModelSource>& source_ = draft_.source;
  std::vector<std::int64_t>& layers_ = draft_.layers;
};

}  // namespace

Draft make_draft(const json::Value& source,
                 int ranks,
                 const std::string& name_of_file,
                 bool model,
                 const nn::Model* own) {
  json::Value named = source;
  config::resolve_model_names(named);
  return Planner(ranks, name_of_file, own).make(named, model);
}

json::Value resolved_config(const Draft& draft, bool model) {
  const parallel::Layout& layout = draft.layout;
  const std::int64_t length = draft.data.sequence_length, global = draft.recipe.global_batch;
  TrainConfig config = draft.config;
  if (model) config.data.sequence_length = length;
  if (model && config.data.pack) config.data.stride = config.data.stride.value_or(length);
  if (global > 0) {
    config.train_batch_size = global;
    config.train_micro_batch_size_per_gpu = layout.micro_batch;
    config.gradient_accumulation_steps = layout.accumulation;
  }
  config.zero_optimization.stage = layout.zero_stage;
  config.run.dir = draft.run.dir;
  config.run.threads_per_rank = layout.threads;
  config.run.derived = draft.derived;
  // The batch keys above are those that elasticity chose.
  if (config.elasticity.enabled) config.elasticity.ignore_non_elastic_batch_info = true;
  config.fp16 = config.fp16.completed(draft.recipe.scaling_stage);
  if (!config.trainer.max_steps && !config.trainer.epochs) config.trainer.epochs = 1.0;
  if (config.scheduler.type.empty()) config.scheduler.type = "constant";
  config.optimizer.params = optim::complete_optimizer_params(config.optimizer);
  if (config.scheduler.params.is_null()) config.scheduler.params = json::Value::object();
  json::Value out = config::write(config);
  if (!model) return out;
  drop_unused_sections(draft.config, out);
  out["model"] = draft.model.resolved.description;
  if (config.model->from) out["model"]["from"] = json::Value::string(*config.model->from);
  if (config.model->new_weights) out["model"]["new_weights"] = json::Value::boolean(true);
  return out;
}

namespace {

Plan finished(Draft draft) {
  draft.problems.raise();
  if (draft.failure) std::rethrow_exception(draft.failure);
  const auto seed = static_cast<std::uint64_t>(draft.config.trainer.seed);
  if (draft.source && !draft.config.model->new_weights) {
    const models::Resolved& begun = draft.model.base ? *draft.model.base : draft.model.resolved;
    draft.model.weights =
        draft.layers.empty()
            ? models::first_weights(*draft.source, begun, seed, draft.notes)
            : models::weights_of_layers(*draft.source, draft.layers, begun, seed, draft.notes);
  }
  plan_adapter_weights(draft.model, draft.config.adapter.from, seed);
  PlanParts parts = parts_of(draft);
  parts.resolved = resolved_config(draft);
  return Plan(std::move(parts));
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
