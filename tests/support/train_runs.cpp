// SPDX-License-Identifier: Apache-2.0
#include "support/train_runs.h"

#include <cmath>
#include <cstring>
#include <mutex>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/base/text.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/comm/world.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/reference.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"

namespace tessera::test {
namespace {

/// Words in an order that a model can learn something from.
std::string synthetic_text(std::size_t bytes) {
  static const char* const kWords[] = {
      "the ", "cat ", "sat ", "on ", "a ", "mat ", "and ", "dog ", "ran ", "far.\n"};
  std::string text;
  const Philox random{7};
  for (std::uint64_t i = 0; text.size() < bytes; ++i)
    text += kWords[random(i)[0] % 10];
  return text;
}

/// Throws unless every rank skipped the same steps with the same loss scale.
void expect_alike(comm::World& world, const engine::StepReport& report) {
  const std::vector<double> mine = {static_cast<double>(report.skipped_total),
                                    report.loss_scale.value_or(0.0)};
  const std::vector<double> all =
      world.all_gather(world.everyone(), mine, TESSERA_HERE("what the ranks skipped"));
  for (std::size_t i = 0; i < all.size(); ++i) {
    TESSERA_REQUIRE(all[i] == mine[i % mine.size()], Bug, "ranks skipped different steps", "");
  }
}

}  // namespace

TinyRun::TinyRun() {
  files::write_atomic(folder_->path() / "text.txt", synthetic_text(6000));
  config_ = json::parse(R"({
    "model": {"num_layers": 2, "hidden_size": 32, "num_heads": 4, "max_positions": 16, "dropout": 0.1},
    "data": {"sequence_length": 16, "validation_fraction": 0.2},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.99], "weight_decay": 0.1}},
    "scheduler": {"type": "WarmupCosine", "params": {"warmup_num_steps": 5, "total_num_steps": 40, "min_lr": 1e-4}},
    "gradient_clipping": 1.0,
    "trainer": {"max_steps": 40, "seed": 5},
    "eval": {"every": 10, "batches": 3, "micro_batch": 2},
    "run": {"threads_per_rank": 1}
  })",
                        "tiny.json");
  config_["data"]["train"] = json::Value::string((folder_->path() / "text.txt").string());
  config_["run"]["dir"] = json::Value::string((folder_->path() / "run").string());
}

TinyRun& TinyRun::set(const std::string& path, const std::string& value) {
  json::Value* at = &config_;
  for (const std::string& key : text::split(path, '.'))
    at = &(*at)[key];
  *at = json::parse(value, path);
  return *this;
}

TinyRun& TinyRun::use_world(std::function<std::unique_ptr<comm::World>(comm::World&)> make) {
  make_world_ = std::move(make);
  return *this;
}

TinyRun& TinyRun::use_model(std::function<nn::Model(const models::Resolved&)> make) {
  make_model_ = std::move(make);
  return *this;
}

TinyRun& TinyRun::use_separate_documents() {
  return use_padded_documents().set("data.pack", "true").set("data.separate_documents", "true");
}

TinyRun& TinyRun::use_padded_documents() {
  std::string lines;
  for (int i = 0; i < 45; ++i) {
    const std::string text(static_cast<std::size_t>(3 + i % 20), static_cast<char>('a' + i % 26));
    lines += R"({"text": ")" + text + "\"}\n";
  }
  const std::filesystem::path path = folder() / "docs.jsonl";
  files::write_atomic(path, lines);
  return set("data.train", "\"" + path.string() + "\"")
      .set("data.pack", "false")
      .set("data.drop_last", "false");
}

std::string bits_of(const engine::Metrics& metrics) {
  std::string out;
  for (const engine::Metric& metric : metrics)
    out += fmt::format("{} {:a} / {:a}; ", metric.name, metric.mean, metric.denominator);
  return out;
}

void expect_same_bits(const Trace& a, const Trace& b) {
  const auto norms_of = [](const Trace& trace) {
    std::vector<double> norms;
    for (const double norm : trace.grad_norms)
      norms.push_back(std::isfinite(norm) ? norm : -1.0);
    return norms;
  };
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(norms_of(a), norms_of(b));
  EXPECT_EQ(a.eval_losses, b.eval_losses);
  EXPECT_EQ(a.metrics, b.metrics);
  EXPECT_EQ(a.loss_scales, b.loss_scales);
  EXPECT_EQ(a.skipped, b.skipped);
  EXPECT_EQ(a.digest, b.digest);
}

planner::Plan TinyRun::plan(const Layout& layout) const {
  json::Value config = config_;
  config["train_micro_batch_size_per_gpu"] = json::Value::integer(layout.micro_batch);
  config["gradient_accumulation_steps"] = json::Value::integer(layout.accumulation);
  config["zero_optimization"]["stage"] = json::Value::integer(layout.stage);
  if (!layout.pipeline.empty())
    config["parallel"]["pipeline"] = json::parse(layout.pipeline, "pipeline");
  if (layout.tensor > 1) {
    config["parallel"]["tensor"]["mode"] = json::Value::string(layout.mode);
    if (layout.depth > 1)
      config["parallel"]["tensor"]["depth"] = json::Value::integer(layout.depth);
    config["parallel"]["tensor"]["size"] = json::Value::integer(layout.tensor);
    config["parallel"]["sequence"] = json::Value::boolean(layout.sequence);
  }
  if (layout.context > 1) {
    config["parallel"]["context"]["size"] = json::Value::integer(layout.context);
    config["parallel"]["context"]["mode"] = json::Value::string(layout.context_mode);
  }
  const planner::Plan plan = planner::make_plan(config, layout.ranks, "tiny.json");
  if (!make_model_) return plan;
  planner::ModelPlan model = plan.model();
  model.resolved.model = make_model_(model.resolved);
  nn::declare_all(model.resolved.model);
  return planner::with(plan, std::move(model));
}

Trace TinyRun::train(const Layout& layout,
                     std::int64_t steps,
                     const std::filesystem::path& save,
                     const std::filesystem::path& resume) const {
  engine::prepare_process(1);
  const planner::Plan made = this->plan(layout);
  const auto data = engine::open_data(made, {});
  const planner::PlanWithData plan = planner::with_data(made, *data);
  const files::TempDir own;
  const std::filesystem::path root = save.empty() ? own.path() : save;
  Trace trace;
  comm::run_threads(plan.mesh(), [&](comm::World& given) {
    at::set_num_threads(1);
    const std::unique_ptr<comm::World> own_world = make_world_ ? make_world_(given) : nullptr;
    comm::World& world = own_world ? *own_world : given;
    memory::Ledger ledger;
    const memory::ScopedLedger scoped(ledger);
    engine::Engine engine(plan, world, data);
    // The reference is the model that the whole training began with.
    if (resume.empty() || engine::wants_reference(*data)) {
      engine.initialize_weights();
      engine.make_reference();
    }
    if (!resume.empty()) engine.load(checkpoint::Checkpoint(resume));
    engine.begin_experience();
    Trace mine;
    while (engine.step() < steps) {
      const engine::StepReport report = engine.train_step();
      mine.losses.push_back(report.loss);
      mine.grad_norms.push_back(report.grad_norm);
      mine.metrics.push_back(bits_of(report.metrics));
      mine.rates.push_back(report.lr);
      mine.batch_tokens.push_back(report.batch_tokens);
      mine.skipped.push_back(report.skipped_total);
      mine.skip_reasons.push_back(report.skip_reason);
      mine.early.push_back(report.early);
      if (report.loss_scale) mine.loss_scales.push_back(*report.loss_scale);
      expect_alike(world, report);
    }
    const engine::EvalReport held_out = engine.evaluate();
    mine.eval_losses.push_back(held_out.loss);
    mine.metrics.push_back(bits_of(held_out.metrics));
    const std::filesystem::path saved = engine.save(root);
    if (world.is_leader()) {
      mine.digest = checkpoint::Checkpoint(saved).digest();
      trace = std::move(mine);
    }
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of a test run"))->wait();
  });
  return trace;
}

std::string TinyRun::sample(const Layout& layout) const {
  engine::prepare_process(1);
  const planner::Plan made = this->plan(layout);
  const auto data = engine::open_data(made, {});
  const planner::PlanWithData plan = planner::with_data(made, *data);
  std::string text;
  comm::run_threads(plan.mesh(), [&](comm::World& world) {
    at::set_num_threads(1);
    engine::Engine engine(plan, world, data);
    engine.initialize_weights();
    const std::string mine = engine.sample();
    if (world.is_leader()) text = mine;
    engine.finish();
  });
  return text;
}

std::vector<std::pair<std::string, std::vector<float>>> first_moments(
    const std::filesystem::path& root) {
  const checkpoint::Checkpoint opened(*checkpoint::newest(root));
  std::vector<std::pair<std::string, std::vector<float>>> out;
  for (const auto& tensor : opened.tensors()) {
    if (!tensor.name.starts_with("optimizer.exp_avg.")) continue;
    out.emplace_back(tensor.name.substr(std::strlen("optimizer.exp_avg.")), opened.values(tensor));
  }
  return out;
}

std::vector<std::pair<std::string, std::vector<float>>> TinyRun::first_gradient(
    const Layout& layout) const {
  const files::TempDir own;
  const Trace trace = train(layout, 1, own.path());
  return first_moments(own.path());
}

}  // namespace tessera::test
