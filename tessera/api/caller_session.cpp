// SPDX-License-Identifier: Apache-2.0
#include "tessera/api/caller_session.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <map>
#include <span>
#include <utility>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/folders.h"
#include "tessera/config/overrides.h"
#include "tessera/engine/agreement.h"
#include "tessera/engine/first_weights.h"
#include "tessera/engine/hook.h"
#include "tessera/engine/hooks/hooks.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/resume.h"
#include "tessera/interop/foreign_training.h"
#include "tessera/nn/step_context.h"
#include "tessera/planner/course.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/place.h"
#include "tessera/planner/values.h"
#include "tessera/planner/with_data.h"
#include "tessera/tasks/eval_options.h"

namespace tessera::api {
namespace {

/// The rank that this process is under a launcher: it joins its job once.
std::unique_ptr<engine::RankInProcess> joined;

/// Sections of a configuration that describe what the program itself brings here.
constexpr std::array kOfTheProgram = {"task", "tokenizer", "adapter", "distill", "qat", "rl"};
constexpr std::array kKeysOfData = {"shuffle", "drop_last", "sequence_length"};

void refuse_idle(const json::Value& written, const std::string& name) {
  const auto refuse = [&](const json::Value& value, const std::string& key) {
    const std::string place = value.key_place.line > 0 ? value.key_place.text() : name;
    throw Error(Error::Kind::Config,
                fmt::format("{}: {}: the program brings its own model and data", place, key),
                "remove it, or train with `tessera train`");
  };
  for (const char* key : kOfTheProgram) {
    if (const json::Value* found = written.find(key)) refuse(*found, key);
  }
  const json::Value* const data = written.find("data");
  if (data == nullptr || !data->is_object()) return;
  for (const auto& [key, value] : data->members()) {
    if (std::ranges::find(kKeysOfData, key) == kKeysOfData.end()) refuse(value, "data." + key);
  }
}

/// Lets evaluations read all samples, unless the configuration says how many.
void evaluate_all(json::Value& written, std::int64_t samples) {
  json::Value& eval = written["eval"];
  if (!eval.is_null() && (!eval.is_object() || eval.find("batches") != nullptr)) return;
  const json::Value* const each = eval.is_object() ? eval.find("micro_batch") : nullptr;
  const std::int64_t rows = each != nullptr && each->is_number()
                                ? std::max<std::int64_t>(1, each->as_integer().value_or(1))
                                : tasks::EvalOptions().micro_batch;
  eval["batches"] = json::Value::integer((samples + rows - 1) / rows);
}

/// The module of the program is on the CPU.
void choose_device(json::Value& written) {
  json::Value& run = written["run"];
  if (!run.is_object() && !run.is_null()) return;
  json::Value& device = run["device"];
  TESSERA_REQUIRE(device.is_null() || !device.is_string() || device.as_string() == "auto" ||
                      device.as_string() == "cpu",
                  Unsupported,
                  "run.device: a program's own module trains on the CPU",
                  "remove it");
  if (device.is_null() || device.is_string()) device = json::Value::string("cpu");
}

/// A number of samples that no training reaches, for a program whose loop ends when it likes.
constexpr std::int64_t kEndless = std::int64_t{1} << 40;

/// Returns the number of samples to plan for. Throws Error{Config} if the schedule of the learning
/// rate needs the number of steps and nothing says it.
std::int64_t samples_of(const planner::Plan& plan, const json::Value& written) {
  const json::Value* const steps = plan.resolved().find("trainer")->find("max_steps");
  if (steps != nullptr && steps->is_number())
    return steps->as_integer().value_or(1) * planner::global_batch_of(plan);
  const json::Value* const trainer = written.find("trainer");
  TESSERA_REQUIRE(trainer == nullptr || trainer->find("epochs") == nullptr,
                  Config,
                  "trainer.epochs: the number of samples is unknown",
                  "give tessera.initialize() a dataset, or set trainer.max_steps");
  const json::Value& scheduler = *plan.resolved().find("scheduler");
  const std::string type = text::lower(scheduler.find("type")->as_string());
  bool says_total = false;
  for (const auto& [key, value] : scheduler.find("params")->members())
    says_total = says_total || key.find("total") != std::string::npos;
  TESSERA_REQUIRE(type == "constant" || type == "warmuplr" || says_total,
                  Config,
                  fmt::format("scheduler.type {} needs the number of steps, and nothing says it",
                              scheduler.find("type")->as_string()),
                  "set trainer.max_steps, or give tessera.initialize() a dataset");
  return kEndless;
}

void refuse_layout(const planner::Plan& plan) {
  const auto refuse = [](const char* key, const char* why) {
    throw Error(Error::Kind::Unsupported,
                fmt::format("{}: the blocks of a program's own module {}", key, why),
                "remove it: ZeRO shards such a model over all ranks");
  };
  if (plan.mesh().size(mesh::Axis::Pp) > 1)
    refuse("parallel.pipeline", "run in one process, not in stages");
  if (plan.mesh().size(mesh::AxisSet::tp()) > 1)
    refuse("parallel.tensor", "have no declared axes along which their weights could be split");
  if (plan.mesh().size(mesh::Axis::Cp) > 1)
    refuse("parallel.context", "need all tokens of a sample");
}

std::uint64_t hash_of(const CallerModel& model) {
  std::uint64_t hash = 0;
  for (const CallerBlockSpec& block : model.blocks) {
    for (const CallerParam& param : block.params) {
      const at::Tensor value = param.value.detach().contiguous();
      const auto* const bytes = static_cast<const std::byte*>(value.const_data_ptr());
      hash = std::rotl(hash, 7) ^ files::xxh3({bytes, value.nbytes()});
    }
  }
  return hash;
}

/// Gives every rank the bytes of rank `root`; all of them have as many.
void broadcast(std::span<std::byte> bytes, int root, comm::World& world, const char* what) {
  constexpr std::size_t kBytes = std::size_t{16} << 20;
  const bool sends = world.rank() == root;
  const comm::RegionPtr room = world.host_transport().allocate(
      std::min(kBytes, std::max<std::size_t>(1, bytes.size())), memory::Tag::Communication);
  for (std::size_t begin = 0; begin < bytes.size(); begin += kBytes) {
    const std::span<std::byte> part = bytes.subspan(begin, std::min(kBytes, bytes.size() - begin));
    if (sends) std::memcpy(room->data(), part.data(), part.size());
    const comm::WorkPtr work = world.host_transport().broadcast(
        world.everyone(),
        {.data = room->data(), .count = part.size(), .dtype = DType::U8},
        root,
        TESSERA_HERE(what));
    work->wait();
    if (!sends) std::memcpy(part.data(), room->data(), part.size());
    work->wait_reusable();
  }
}

/// Gives every rank the first weights of rank 0, in the caller's own tensors.
void share_first_weights(const CallerModel& model, comm::World& world) {
  if (world.size() == 1) return;
  const std::uint64_t hash = hash_of(model);
  const std::vector<double> all =
      world.all_gather(world.everyone(),
                       {static_cast<double>(hash >> 32U), static_cast<double>(hash & 0xffffffffU)},
                       TESSERA_HERE("hashes of the first weights"));
  bool equal = true;
  for (std::size_t i = 2; i < all.size(); ++i)
    equal = equal && all[i] == all[i % 2];
  if (equal) return;
  if (world.is_leader())
    log::info("the ranks built their modules with different weights: those of rank 0 count");
  for (const CallerBlockSpec& block : model.blocks) {
    for (const CallerParam& param : block.params) {
      const at::Tensor value = param.value.detach().contiguous();
      broadcast(
          {static_cast<std::byte*>(value.data_ptr()), value.nbytes()}, 0, world, "first weights");
      if (!value.is_same(param.value)) param.value.detach().copy_(value);
    }
  }
}

/// Reads the first weights from the caller's tensors, which may be dropped afterwards.
parallel::FillRange weights_of(const std::shared_ptr<const CallerModel>& model) {
  std::map<std::string, const CallerParam*> params;
  for (const CallerBlockSpec& block : model->blocks) {
    for (const CallerParam& param : block.params)
      params[param.name] = &param;
  }
  return [model, params = std::move(params)](
             const ParamInfo& info, std::int64_t begin, std::int64_t end, float* out) {
    const at::Tensor& value = params.at(info.name)->value;
    TESSERA_ASSERT(value.defined());
    at::from_blob(out, {end - begin}, at::kFloat)
        .copy_(value.detach().reshape({-1}).narrow(0, begin, end - begin));
  };
}

/// Counts the evaluations of a training, which happen inside steps.
class EvaluationCounter final : public engine::Hook {
 public:
  explicit EvaluationCounter(std::int64_t& count) : Hook(kReport), count_(count) {}
  [[nodiscard]] std::string_view name() const override { return "evaluation counter"; }
  void after_test(engine::Trainer& /*trainer*/, const engine::EvalReport& /*report*/) override {
    ++count_;
  }

 private:
  std::int64_t& count_;
};

json::Value metrics_of(const engine::Metrics& metrics) {
  json::Value out = json::Value::object();
  for (const engine::Metric& metric : metrics)
    out[metric.name] = json::Value::number(metric.mean);
  return out;
}

}  // namespace

CallerSession::CallerSession(const CallerRequest& request) {
  json::Value written = json::parse(request.config, request.name);
  for (const std::string& change : request.changes)
    config::apply_override(written, change);
  refuse_idle(written, request.name);
  choose_device(written);
  // Blocks of the program have no file; nothing opens these.
  written["data"]["train"] = json::Value::string("the program's own data");
  if (request.validation) {
    written["data"]["validation"] = json::Value::string("the program's own data");
    evaluate_all(written, *request.validation);
  }
  // The caller's own loop determines the order of what it gives.
  if (!request.size) written["data"]["shuffle"] = json::Value::boolean(false);
  const planner::Plan plan = planner::make_plan(
      written, engine::ranks_of_process(), request.name, model_of(request.model));
  refuse_layout(plan);
  request.model->seed = planner::seed_of(plan);
  data_ = std::make_shared<data::Datasets>();
  data_->train = caller_dataset(request.size ? *request.size : samples_of(plan, written), 0);
  if (request.validation) data_->validation = caller_dataset(*request.validation, 1);
  plan_ = planner::place(planner::with_data(plan, *data_));
  const json::Value* const run = written.find("run");
  if (run != nullptr && run->is_object() && run->find("dir") != nullptr) open_folder();
  start(request);
}

CallerSession::~CallerSession() = default;

void CallerSession::open_folder() {
  folder_ = std::make_unique<const engine::RunFolder>(
      plan_->resolved().find("run")->find("dir")->as_string(),
      engine::rank_of_process() == 0 ? engine::RunFolder::Access::Own
                                     : engine::RunFolder::Access::Look);
}

void CallerSession::start(const CallerRequest& request) {
  engine::ResumePoint resume;
  if (folder_ != nullptr) {
    resume = engine::find_resume_point({}, *folder_, *plan_, *data_);
    plan_ = planner::with(*plan_, resume.course);
  }
  if (joined == nullptr || joined->alone()) {
    const std::string asked = fmt::format("{} {}", resume.position.step, data_->train->size());
    const engine::Agreement agreement = {.asked = files::xxh3(std::as_bytes(std::span(asked))),
                                         .facts = [&](const std::function<void()>& alive) {
                                           return engine::facts_of(*plan_, *data_, resume, alive);
                                         }};
    joined.reset();
    joined = std::make_unique<engine::RankInProcess>(*plan_, agreement, engine::log_failure);
  }
  rank_ = joined.get();
  comm::World& world = rank_->world();
  TESSERA_REQUIRE(
      world.mesh().text() == plan_->mesh().text() &&
          world.mesh().size(mesh::Axis::DpShard) == plan_->mesh().size(mesh::Axis::DpShard),
      Config,
      "the first training of this process has another division of its ranks",
      "give all of them the same parallel section");
  share_first_weights(*request.model, world);
  engine_ = std::make_unique<engine::Engine>(
      engine::with_first_weights(*plan_, weights_of(request.model)), world, data_);
  if (resume.checkpoint) {
    engine_->load(*resume.opened);
  } else {
    engine_->initialize_weights();
  }
  // The values of the caller's tensors are not needed any more.
  for (CallerBlockSpec& block : request.model->blocks) {
    for (CallerParam& param : block.params)
      param.value.reset();
  }
  if (folder_ != nullptr && world.is_leader()) {
    folder_->prepare(plan_->resolved());
    folder_->write_status("running", resume.position.step, 0, "");
  }
  world.barrier(TESSERA_HERE("the run folder"));
  trainer_ = std::make_unique<engine::Trainer>(
      *engine_, nullptr, folder_ == nullptr ? std::filesystem::path() : folder_->path());
  engine::attach_defaults(*trainer_);
  trainer_->attach(std::make_unique<EvaluationCounter>(evaluations_));
  trainer_->begin();
}

json::Value CallerSession::described() const {
  json::Value notes = json::Value::array();
  for (const std::string& note : plan_->notes())
    notes.push_back(json::Value::string(note));
  const json::Value& config = plan_->resolved();
  return json::Value::object(
      {{"rank", json::Value::integer(rank_->world().rank())},
       {"ranks", json::Value::integer(rank_->world().size())},
       {"step", json::Value::integer(engine_->step())},
       {"samples", json::Value::integer(engine_->samples())},
       {"max_steps", json::Value::integer(engine_->max_steps())},
       {"endless", json::Value::boolean(data_->train->size() == kEndless)},
       {"global_batch", json::Value::integer(planner::global_batch_of(*plan_))},
       {"micro_batch", json::Value::integer(planner::micro_batch_of(*plan_))},
       {"accumulation", *config.find("gradient_accumulation_steps")},
       {"zero_stage", *config.find("zero_optimization")->find("stage")},
       {"threads", json::Value::integer(planner::threads_of(*plan_))},
       {"run_dir",
        folder_ == nullptr ? json::Value() : json::Value::string(folder_->path().string())},
       {"notes", std::move(notes)},
       {"config", config}});
}

const at::Tensor& CallerSession::parameter(int block, int index) {
  return engine_->model().params(block)[static_cast<std::size_t>(index)]->tensor();
}

json::Value CallerSession::step() {
  TESSERA_REQUIRE(!finished_, Config, "the training has been closed", "open another one");
  const bool more = trainer_->step();
  TESSERA_REQUIRE(
      trainer_->last().has_value(),
      Config,
      fmt::format("the training is finished: step {} of {}", engine_->step(), engine_->max_steps()),
      "raise trainer.max_steps, or choose another run.dir");
  const engine::StepReport& report = *trainer_->last();
  const auto& evaluation = trainer_->last_eval();
  json::Value out =
      json::Value::object({{"step", json::Value::integer(report.step)},
                           {"loss", json::Value::number(report.loss)},
                           {"lr", json::Value::number(report.lr)},
                           {"grad_norm", json::Value::number(report.grad_norm)},
                           {"samples", json::Value::integer(report.samples)},
                           {"epoch", json::Value::number(report.epoch)},
                           {"seconds", json::Value::number(report.seconds)},
                           {"mem_peak_bytes", json::Value::integer(report.mem_peak_bytes)},
                           {"skipped", json::Value::boolean(report.skipped)},
                           {"skip_reason", json::Value::string(report.skip_reason)},
                           {"done", json::Value::boolean(!more)},
                           {"evaluations", json::Value::integer(evaluations_)},
                           {"saved_step", json::Value::integer(trainer_->saved_step())},
                           {"stop_signal", json::Value::integer(report.stop_signal)},
                           {"metrics", metrics_of(report.metrics)}});
  if (report.loss_scale) out["loss_scale"] = json::Value::number(*report.loss_scale);
  if (evaluation) out["eval_loss"] = json::Value::number(evaluation->loss);
  return out;
}

json::Value CallerSession::evaluate() {
  const engine::EvalReport report = trainer_->test();
  return json::Value::object({{"loss", json::Value::number(report.loss)},
                              {"samples", json::Value::integer(report.samples)},
                              {"evaluations", json::Value::integer(evaluations_)},
                              {"metrics", metrics_of(report.metrics)}});
}

void CallerSession::gather() {
  nn::StepContext context(nn::Mode::Eval, 0);
  static_cast<void>(engine_->state().infer(gathering_batch(), context));
}

std::filesystem::path CallerSession::save(const std::filesystem::path& folder) {
  engine::Saver& saver = engine_->saver();
  if (saver.copying()) {
    saver.finish_copy();
  } else if (saver.saving()) {
    // The checkpoint that a step began; the hook would finish it at a later step.
    trainer_->note_saved(checkpoint::step_of(saver.finish().folder).value_or(0));
  }
  return engine_->save(folder);
}

void CallerSession::load(const std::filesystem::path& folder) {
  const std::optional<std::filesystem::path> found = checkpoint::newest_at(folder);
  TESSERA_REQUIRE(found.has_value(),
                  Format,
                  folder.string() + " contains no checkpoint",
                  "name a checkpoint, or the folder that was given to save()");
  engine_->load(checkpoint::Checkpoint(*found));
}

std::vector<std::string> CallerSession::all_gather(std::string_view bytes) {
  comm::World& world = rank_->world();
  const std::vector<double> sizes = world.all_gather(world.everyone(),
                                                     {static_cast<double>(bytes.size())},
                                                     TESSERA_HERE("sizes of the caller's values"));
  std::vector<std::string> out(sizes.size());
  for (int rank = 0; rank < world.size(); ++rank) {
    std::string& values = out[static_cast<std::size_t>(rank)];
    values.resize(static_cast<std::size_t>(sizes[static_cast<std::size_t>(rank)]));
    if (rank == world.rank()) values = bytes;
    broadcast(std::as_writable_bytes(std::span(values)), rank, world, "the caller's values");
  }
  return out;
}

int CallerSession::finish() {
  if (finished_) return *finished_;
  finished_ = trainer_->finish();
  if (folder_ != nullptr && rank_->world().is_leader()) {
    const std::string state = trainer_->stop_signal() != 0 ? "stopped" : "finished";
    const std::string message =
        trainer_->incomplete().empty() ? trainer_->early_stop() : trainer_->incomplete().front();
    trainer_->try_to_write(
        [&] { folder_->write_status(state, engine_->step(), *finished_, message); });
  }
  return *finished_;
}

int end_rank_of_process(int code, const std::string& failure) {
  if (joined == nullptr) return code;
  if (!failure.empty()) joined->fail(Error(Error::Kind::Unsupported, failure, ""));
  const int ends = joined->end(code);
  joined.reset();
  return ends;
}

}  // namespace tessera::api
