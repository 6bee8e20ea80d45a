// SPDX-License-Identifier: Apache-2.0
// Measures training steps of a GPT-2-shaped model on random tokens, for run_step.sh, run_save.sh,
// run_layouts.sh and run_traffic.sh.
//
//   step_bench [--preset gpt2-small] [--ranks 1] [--threads 2] [--batch 4] [--length 512]
//     [--dtype bf16] [--stage 1] [--steps 5] [--warmup 2] [--micros 1] [--vocab 50304]
//     [--pipeline 1] [--schedule 1f1b] [--tensor 1] [--set KEY=VALUE]...
//     [--save-every 0] [--save beside|waiting] [--save-dir FOLDER] [--hosts 1]
//
// --batch is the global batch, --micros the number of micro-batches per rank; --set overrides any
// key of the configuration, as in the program; --save-every N saves a checkpoint every N steps, the
// first one half-way through the first N. Prints one JSON line: tokens_per_s (median step), step_ms
// of every step, peak_mb (peak resident memory of the largest rank, MiB), wall_ms of all counted
// steps including saves, and the calls and bytes of each rank's collectives and messages in a step
// (comm::Traffic). With --save-every also stall_ms of each save (the time that steps waited for it)
// and drain_ms (the wait for the last save at the end). With --pipeline also bubble, the waiting
// time of the first stage as a fraction of its computing time, and bubble_simulated, the bubble of
// the schedule with equally fast stages and (_as_measured) with the measured times. With --hosts
// the ranks are threads of this process on as many simulated hosts with as many ranks each, and the
// line has between_hosts, the bytes that all hosts together send to each other in a step.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/host_world.h"
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"
#include "tessera/config/overrides.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/metrics.h"
#include "tessera/engine/random_tokens.h"
#include "tessera/parallel/layout.h"
#include "tessera/parallel/pipeline/simulate.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/model_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"

namespace {

using tessera::comm::Traffic;
using tessera::engine::StepReport;

std::string option(std::map<std::string, std::string>& given,
                   const std::string& name,
                   const std::string& fallback) {
  const auto it = given.find("--" + name);
  return it == given.end() ? fallback : it->second;
}

std::string config_of(std::map<std::string, std::string>& given,
                      int ranks,
                      std::int64_t length,
                      std::int64_t batch,
                      std::int64_t steps) {
  const bool bf16 = option(given, "dtype", "bf16") == "bf16";
  const std::string vocab = option(given, "vocab", "50304");
  return fmt::format(
      R"({{"model": {{"preset": "{}", "vocab_size": {}, "max_positions": {}}}, "tokenizer": {{"type": "{}"}},
          "data": {{"train": "random", "sequence_length": {}}}, "train_batch_size": {}, "gradient_accumulation_steps": {},
          "parallel": {{"pipeline": {{"size": {}, "schedule": "{}"}}, "tensor": {{"size": {}}}}},
          "optimizer": {{"params": {{"lr": 6e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}}}},
          "zero_optimization": {{"stage": {}}}, "bf16": {{"enabled": {}}}, "trainer": {{"max_steps": {}}}, "run": {{"dir": "unused", "threads_per_rank": {}}}}})",
      option(given, "preset", "gpt2-small"),
      vocab,
      length,
      std::stoll(vocab) < 50257 ? "byte" : "gpt2",
      length,
      batch,
      option(given, "micros", "1"),
      option(given, "pipeline", "1"),
      option(given, "schedule", "1f1b"),
      option(given, "tensor", "1"),
      option(given, "stage", ranks > 1 ? "1" : "0"),
      bf16,
      steps,
      option(given, "threads", "2"));
}

/// Peak resident memory of this process in MiB, including libraries and shared memory.
double resident_peak_mb() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "VmHWM:") continue;
    double kib = 0.0;
    status >> kib;
    return kib / 1024.0;
  }
  return 0.0;
}

/// Saves checkpoints between the measured steps.
class Saves {
 public:
  explicit Saves(std::map<std::string, std::string>& given)
      : every_(std::stoll(option(given, "save-every", "0"))),
        beside_(option(given, "save", "beside") == "beside"),
        folder_(option(given, "save-dir", "")) {
    TESSERA_REQUIRE(every_ == 0 || !folder_.empty(), Config, "--save-every needs --save-dir", "");
  }

  /// After measured step `step`, which ended at `trained`.
  void after(tessera::engine::Engine& engine,
             const StepReport& report,
             std::int64_t step,
             double trained) {
    if (!stalls_ms_.empty()) stalls_ms_.back() += 1e3 * report.save_s;
    if (engine.saver().saving() && engine.saver().settled()) engine.saver().finish();
    if (every_ == 0 || step < 0 || step % every_ != every_ / 2) return;
    engine.pause_clock();
    if (engine.saver().saving()) engine.saver().finish();
    const auto keep_one = [folder = folder_] { tessera::checkpoint::prune(folder, 1); };
    if (beside_) {
      engine.saver().save_in_background(folder_, keep_one);
    } else {
      engine.save(folder_);
      if (engine.world().is_leader()) keep_one();
    }
    engine.resume_clock();
    stalls_ms_.push_back(1e3 * (tessera::now_s() - trained));
  }
  void drain(tessera::engine::Engine& engine) {
    const double start = tessera::now_s();
    if (engine.saver().saving()) engine.saver().finish();
    drain_ms_ = 1e3 * (tessera::now_s() - start);
  }
  /// Members of the result; empty without checkpoints.
  [[nodiscard]] std::string text() const {
    if (every_ == 0) return "";
    return fmt::format(R"(, "save": "{}", "stall_ms": [{:.1f}], "drain_ms": {:.1f})",
                       beside_ ? "beside" : "waiting",
                       fmt::join(stalls_ms_, ", "),
                       drain_ms_);
  }

 private:
  std::int64_t every_;
  bool beside_;
  std::filesystem::path folder_;
  std::vector<double> stalls_ms_;
  double drain_ms_ = 0.0;
};

/// Compares the waiting time of the first stage with the simulation of its schedule.
class Bubble {
 public:
  explicit Bubble(const tessera::planner::Plan& plan) : plan_(plan) {}
  void after(const StepReport& report) {
    busy_s_ += report.forward_s + report.backward_s - report.receive_s;
    receive_s_ += report.receive_s;
  }
  /// Members of the result; empty without a pipeline. Every rank calls it.
  [[nodiscard]] std::string text(tessera::comm::World& world) const {
    if (plan_.layout().stages.stages == 1) return "";
    const tessera::mesh::AxisSet stages = {tessera::mesh::Axis::Pp};
    const std::vector<double> busy_s =
        world.all_gather(world.group(stages), {busy_s_}, TESSERA_HERE("work of all stages"));
    const tessera::parallel::PipelineSize size{plan_.layout().stages.stages,
                                               plan_.layout().stages.chunks,
                                               static_cast<int>(plan_.layout().accumulation)};
    // Gradients of inputs and of weights take about as long as a forward pass each.
    std::vector<tessera::parallel::PassTimes> measured;
    for (const double busy : busy_s)
      measured.push_back({busy, busy, busy});
    const auto waits = [&](std::span<const tessera::parallel::PassTimes> times) {
      const auto simulated = tessera::parallel::simulate(
          tessera::parallel::all_actions(plan_.layout().pipeline_schedule(), size),
          size,
          plan_.layout().stages.placement,
          times);
      const auto& first = simulated.stages.front();
      return (first.end - first.begin) / first.busy - 1;
    };
    const std::vector<tessera::parallel::PassTimes> alike(1);
    return fmt::format(
        R"(, "bubble": {:.4f}, "bubble_simulated": {:.4f}, "bubble_simulated_as_measured": {:.4f})",
        receive_s_ / busy_s_,
        waits(alike),
        waits(measured));
  }

 private:
  const tessera::planner::Plan& plan_;
  double busy_s_ = 0, receive_s_ = 0;
};

int run(std::map<std::string, std::string> given) {
  const int ranks = std::stoi(option(given, "ranks", "1"));
  const std::int64_t batch = std::stoll(option(given, "batch", "4")),
                     length = std::stoll(option(given, "length", "512"));
  const std::int64_t steps = std::stoll(option(given, "steps", "5")),
                     warmup = std::stoll(option(given, "warmup", "2"));
  const std::string text = config_of(given, ranks, length, batch, steps + warmup);
  const Saves saves_of_all(given);
  tessera::json::Value source = tessera::json::parse(text, "step_bench");
  for (const std::string& assignment : tessera::text::split(option(given, "set", ""), '\n')) {
    if (!assignment.empty()) tessera::config::apply_override(source, assignment);
  }
  const tessera::planner::Plan made = tessera::planner::make_plan(source, ranks, "step_bench");
  auto data = std::make_shared<tessera::data::Datasets>();
  data->train = std::make_unique<tessera::engine::RandomTokens>(
      length, std::min<std::int64_t>(50257, made.model().resolved.vocab_size));
  const tessera::planner::PlanWithData plan = tessera::planner::with_data(made, *data);
  const auto report = [](const std::vector<std::string>& lines, int) {
    for (const std::string& line : lines)
      std::fprintf(stderr, "%s\n", line.c_str());
  };
  std::string between_hosts;
  const auto train = [&](tessera::comm::World& world) {
    const auto engine = tessera::engine::initialize(plan, world, data);
    Saves saves = saves_of_all;
    Bubble bubble(plan);
    std::vector<double> ms;
    StepReport last;
    double wall_s = 0.0;
    Traffic before;
    for (std::int64_t s = 0; s < steps + warmup; ++s) {
      if (s == warmup) before = world.transport().traffic();
      const double start = tessera::now_s();
      last = engine->train_step();
      saves.after(*engine, last, s - warmup, tessera::now_s());
      if (s < warmup) continue;
      ms.push_back(1e3 * last.seconds);
      bubble.after(last);
      wall_s += tessera::now_s() - start;
    }
    const Traffic moved = world.transport().traffic() - before;
    saves.drain(*engine);
    const auto of_ranks = [&](std::int64_t count) {
      return world.all_gather(world.everyone(),
                              {static_cast<double>(count) / static_cast<double>(steps)},
                              TESSERA_HERE("traffic of all ranks"));
    };
    const std::vector<double> calls = of_ranks(moved.calls), bytes = of_ranks(moved.bytes);
    const std::vector<double> peaks_mb = world.all_gather(
        world.everyone(), {resident_peak_mb()}, TESSERA_HERE("peaks of all ranks"));
    const std::string waits = bubble.text(world);
    if (world.is_leader()) {
      std::vector<double> sorted = ms;
      std::sort(sorted.begin(), sorted.end());
      const double median = sorted[sorted.size() / 2];
      fmt::print(
          R"({{"what": "tessera_step", "dtype": "{}", "stage": {}, "ranks": {}, "threads": {}, "B": {}, "T": {}, "tokens_per_s": {:.1f}, )"
          R"("step_ms": [{:.1f}], "peak_mb": {:.0f}, "loss_last": {:.4f}, "wall_ms": {:.1f}, "calls": [{:.1f}], "bytes": [{:.0f}]{}{}{}}})"
          "\n",
          option(given, "dtype", "bf16"),
          plan.layout().zero_stage,
          ranks,
          plan.layout().threads,
          batch,
          length,
          static_cast<double>(batch * length) / median * 1e3,
          fmt::join(ms, ", "),
          *std::max_element(peaks_mb.begin(), peaks_mb.end()),
          last.loss,
          1e3 * wall_s,
          fmt::join(calls, ", "),
          fmt::join(bytes, ", "),
          saves.text(),
          waits,
          between_hosts);
      fmt::print(stderr, "{}\n", tessera::engine::breakdown_line(last));
    }
    engine->finish();
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of the benchmark"))->wait();
    return 0;
  };
  const int hosts = std::stoi(option(given, "hosts", "1"));
  if (hosts == 1) return tessera::engine::run_ranks(plan, report, train);
  const std::vector<int> per_host(static_cast<std::size_t>(hosts), ranks / hosts);
  const auto sent_in = [&](std::int64_t count) {
    return static_cast<double>(
        tessera::test::run_hosts(per_host, plan.mesh(), [&](tessera::comm::World& world) {
          const auto engine = tessera::engine::initialize(plan, world, data);
          for (std::int64_t s = 0; s < count; ++s)
            static_cast<void>(engine->train_step());
          engine->finish();
        }));
  };
  between_hosts =
      fmt::format(R"(, "hosts": {}, "between_hosts": {:.0f})",
                  hosts,
                  (sent_in(steps + warmup) - sent_in(warmup)) / static_cast<double>(steps));
  tessera::test::run_hosts(
      per_host, plan.mesh(), [&](tessera::comm::World& world) { train(world); });
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> given;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    std::string& value = given[name];
    value = (name == "--set" ? value : "") + argv[i + 1] + (name == "--set" ? "\n" : "");
  }
  try {
    return run(std::move(given));
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "%s\n", error.text().c_str());
    return tessera::exit_code(error.kind());
  }
}
