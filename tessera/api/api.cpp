// SPDX-License-Identifier: Apache-2.0
#include "tessera/api.h"

#include <optional>
#include <string_view>
#include <utility>

#include "tessera/base/files.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/config/json.h"
#include "tessera/config/overrides.h"
#include "tessera/engine/console.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/generate.h"
#include "tessera/engine/generation_config.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/open_model.h"
#include "tessera/engine/run.h"
#include "tessera/engine/score.h"
#include "tessera/launch/launch.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/tasks/task.h"

namespace tessera::api {
namespace {

/// Calls `work`; its exceptions leave as Error.
template <class Work>
auto guarded(Work work) {
  try {
    return work();
  } catch (...) {
    engine::rethrow_as_error();
  }
}

std::map<std::string, double> by_name(const engine::Metrics& metrics) {
  std::map<std::string, double> out;
  for (const engine::Metric& metric : metrics)
    out[metric.name] = metric.mean;
  return out;
}

/// Prints whole lines only, as into a pipe.
class Lines final : public engine::Console {
 public:
  explicit Lines(const std::function<void(std::string_view)>& print) : print_(print) {}
  void line(std::string_view text) override { print_(text); }
  void live(std::string_view /*text*/) override {}
  void stream(std::string_view text) override { print_(text); }
  [[nodiscard]] bool is_terminal() const override { return false; }

 private:
  const std::function<void(std::string_view)>& print_;
};

}  // namespace

struct Plan::Parts {
  json::Value written;
  std::string name;
  planner::Plan plan;
};

Plan::Plan(const std::string& json, int ranks, const std::string& name)
    : parts_(guarded([&] {
        json::Value written = json::parse(json, name);
        planner::Plan plan = planner::make_plan(written, ranks, name);
        return std::make_shared<const Parts>(Parts{std::move(written), name, std::move(plan)});
      })) {}

Plan Plan::of_file(const std::filesystem::path& file, int ranks) {
  return Plan(files::read(file), ranks, file.string());
}

Plan Plan::with(const std::string& assignment) const {
  Plan out = *this;
  out.parts_ = guarded([&] {
    json::Value written = parts_->written;
    config::apply_override(written, assignment);
    planner::Plan plan = planner::make_plan(written, parts_->plan.ranks(), parts_->name);
    return std::make_shared<const Parts>(Parts{std::move(written), parts_->name, std::move(plan)});
  });
  return out;
}

std::string Plan::json() const {
  return parts_->plan.resolved().dump(2);
}

const std::vector<std::string>& Plan::notes() const {
  return parts_->plan.notes();
}

int Plan::ranks() const {
  return parts_->plan.ranks();
}

/// The engine uses the world until its end.
struct Training::Parts {
  std::unique_ptr<comm::World> world;
  std::unique_ptr<engine::Engine> engine;
};

Training::Training(const Plan& plan, const Start& start) : parts_(std::make_unique<Parts>()) {
  const planner::Plan& resolved = plan.parts_->plan;
  TESSERA_REQUIRE(resolved.ranks() == 1 && (!planner::task_of(resolved) ||
                                            planner::task_of(resolved)->extra_ranks() == 0),
                  Config,
                  "a training in the caller's process has one rank, and the plan has " +
                      std::to_string(resolved.ranks()) +
                      (resolved.ranks() == 1 ? ", besides those that rl.overlap adds" : ""),
                  "make the plan for 1 rank, or call tessera::api::run()");
  guarded([&] {
    const int threads =
        start.threads > 0 ? start.threads : static_cast<int>(planner::threads_of(resolved));
    parts_->world = engine::world_in_process(
        {.threads = threads, .caching_allocator = start.caching_allocator});
    parts_->engine = engine::initialize(resolved, *parts_->world);
  });
}

Training::~Training() = default;
Training::Training(Training&& other) noexcept = default;
Training& Training::operator=(Training&& other) noexcept = default;

Step Training::step() {
  return guarded([&] {
    const engine::StepReport report = parts_->engine->train_step();
    return Step{.number = report.step,
                .loss = report.loss,
                .learning_rate = report.lr,
                .gradient_norm = report.grad_norm,
                .tokens = report.tokens,
                .skipped = report.skipped,
                .metrics = by_name(report.metrics)};
  });
}

std::int64_t Training::steps() const {
  return parts_->engine->step();
}

std::int64_t Training::max_steps() const {
  return parts_->engine->max_steps();
}

Evaluation Training::evaluate() {
  return guarded([&] {
    const engine::EvalReport report = parts_->engine->evaluate();
    return Evaluation{.loss = report.loss, .metrics = by_name(report.metrics)};
  });
}

std::string Training::sample() {
  return guarded([&] { return parts_->engine->sample(); });
}

std::filesystem::path Training::save(const std::filesystem::path& folder) {
  return guarded([&] { return parts_->engine->save(folder); });
}

void Training::load(const std::filesystem::path& folder) {
  const std::optional<std::filesystem::path> found = checkpoint::newest_at(folder);
  TESSERA_REQUIRE(found.has_value(),
                  Format,
                  folder.string() + " contains no checkpoint",
                  "name a checkpoint, or the folder that was given to save()");
  guarded([&] { parts_->engine->load(checkpoint::Checkpoint(*found)); });
}

int run(const Plan& plan, const RunOptions& options) {
  return guarded([&] {
    Lines lines(options.print);
    const engine::TrainCommand command{.dry_run = options.dry_run,
                                       .quiet = !options.print,
                                       .console = options.print ? &lines : nullptr};
    engine::Prepared ready = engine::prepare(plan.parts_->plan, command);
    return engine::run_training(ready.plan, ready.opened, command);
  });
}

struct Model::Parts {
  std::unique_ptr<comm::World> world;
  std::unique_ptr<engine::OpenModel> model;
};

Model::Model(const std::filesystem::path& path, const Start& start)
    : parts_(std::make_unique<Parts>()) {
  guarded([&] {
    parts_->model = engine::find_model(path);
    engine::check_memory(*parts_->model, 1, launch::available_memory());
    const int threads = start.threads > 0 ? start.threads : launch::usable_cores();
    parts_->world = engine::world_in_process(
        {.threads = threads, .caching_allocator = start.caching_allocator});
    engine::load_model(*parts_->model, *parts_->world);
  });
}

Model::~Model() = default;
Model::Model(Model&& other) noexcept = default;
Model& Model::operator=(Model&& other) noexcept = default;

std::string Model::generate(const std::string& prompt, const Sampling& sampling) {
  return guarded([&] {
    engine::OpenModel& model = *parts_->model;
    engine::Generator generator(*model.executor, *model.tokenizer, model.shape);
    engine::GenerateOptions how;
    how.max_new_tokens = sampling.max_new_tokens;
    how.sampler = {
        .temperature = sampling.temperature, .top_k = sampling.top_k, .top_p = sampling.top_p};
    how.seed = sampling.seed;
    how.ends = engine::generation_config_of(model).ends;
    std::string text;
    generator.run(prompt, how, [&](std::string_view piece) { text += piece; });
    return text;
  });
}

std::vector<double> Model::log_probabilities(const std::string& text) {
  return guarded([&] {
    engine::OpenModel& model = *parts_->model;
    return engine::log_probabilities(
        *model.executor, model.shape, model.tokenizer->encode_prompt(text));
  });
}

}  // namespace tessera::api
