// SPDX-License-Identifier: Apache-2.0
// Times training steps of a GPT-2-shaped model on random tokens: the tessera side of run_step.sh
// and run_save.sh.
//
//   step_bench [--preset gpt2-small] [--ranks 1] [--threads 2] [--batch 4] [--length 512] [--dtype
//   bf16] [--stage 1] [--steps 5] [--warmup 2] [--save-every 0] [--save beside|waiting] [--save-dir
//   FOLDER]
//
// --batch is the global batch; --save-every: a checkpoint every so many steps, the first half-way
// to there. Prints one JSON line: tokens_per_s (median step), step_ms of every step, peak memory of
// the largest rank, wall_ms of all counted steps, saving included; with --save-every also stall_ms
// of each save (what the steps waited for it) and drain_ms (the wait for the last one at the end).
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/clock.h"
#include "tessera/base/error.h"
#include "tessera/base/philox.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/launch.h"
#include "tessera/engine/metrics.h"

namespace {

using tessera::engine::StepReport;

/// Uniform random tokens: nothing to learn, as the peer does it.
class RandomTokens final : public tessera::data::Dataset {
 public:
  RandomTokens(std::int64_t length, std::int64_t vocab) : length_(length), vocab_(vocab) {}
  [[nodiscard]] std::int64_t size() const override { return 1 << 20; }
  [[nodiscard]] std::int64_t length() const override { return length_; }
  bool get(std::int64_t index,
           std::int64_t* ids,
           std::int64_t* labels,
           std::int64_t* mask) const override {
    const tessera::Philox random{static_cast<std::uint64_t>(index)};
    for (std::int64_t t = 0; t <= length_; ++t) {
      const auto id = static_cast<std::int64_t>(random(static_cast<std::uint64_t>(t))[0] %
                                                static_cast<std::uint32_t>(vocab_));
      if (t < length_) ids[t] = id;
      if (t > 0) labels[t - 1] = id;
    }
    std::fill(mask, mask + length_, 1);
    return false;
  }

 private:
  std::int64_t length_, vocab_;
};

std::string option(std::map<std::string, std::string>& given,
                   const std::string& name,
                   const std::string& fallback) {
  const auto it = given.find("--" + name);
  return it == given.end() ? fallback : it->second;
}

int run(std::map<std::string, std::string> given) {
  const int ranks = std::stoi(option(given, "ranks", "1"));
  const std::int64_t batch = std::stoll(option(given, "batch", "4")),
                     length = std::stoll(option(given, "length", "512"));
  const std::int64_t steps = std::stoll(option(given, "steps", "5")),
                     warmup = std::stoll(option(given, "warmup", "2"));
  const std::string dtype = option(given, "dtype", "bf16");
  const std::int64_t save_every = std::stoll(option(given, "save-every", "0"));
  const bool beside = option(given, "save", "beside") == "beside";
  const std::filesystem::path save_dir = option(given, "save-dir", "");
  TESSERA_REQUIRE(
      save_every == 0 || !save_dir.empty(), Config, "--save-every needs --save-dir", "");
  const std::string stage = option(given, "stage", ranks > 1 ? "1" : "0");
  const std::string text = fmt::format(
      R"({{"model": {{"preset": "{}", "vocab_size": 50304, "max_positions": {}}}, "tokenizer": {{"type": "gpt2"}},
          "data": {{"train": "random", "sequence_length": {}}}, "train_batch_size": {}, "gradient_accumulation_steps": 1,
          "optimizer": {{"params": {{"lr": 6e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}}}},
          "zero_optimization": {{"stage": {}}}, "bf16": {{"enabled": {}}}, "trainer": {{"max_steps": {}}}, "run": {{"dir": "unused", "threads_per_rank": {}}}}})",
      option(given, "preset", "gpt2-small"),
      length,
      length,
      batch,
      stage,
      dtype == "bf16" ? "true" : "false",
      steps + warmup,
      option(given, "threads", "2"));
  tessera::planner::Plan plan =
      tessera::planner::make_plan(tessera::json::parse(text, "step_bench"), ranks, "step_bench");
  auto data = std::make_shared<tessera::data::Datasets>();
  data->train = std::make_unique<RandomTokens>(length, 50257);
  tessera::engine::finish_plan(plan, *data);
  const auto report = [](const std::vector<std::string>& lines) {
    for (const std::string& line : lines)
      std::fprintf(stderr, "%s\n", line.c_str());
  };
  return tessera::engine::run_ranks(plan, report, [&](tessera::comm::World& world) {
    const auto engine = tessera::engine::initialize(plan, world, data);
    std::vector<double> ms;
    StepReport last;
    std::string breakdown;
    std::vector<double> stalls;
    double wall_s = 0.0;
    const auto keep_one = [&] { tessera::checkpoint::prune(save_dir, 1); };
    for (std::int64_t s = 0; s < steps + warmup; ++s) {
      const double start = tessera::now_s();
      last = engine->train_step();
      const double trained = tessera::now_s();
      if (engine->saving() && engine->save_settled()) engine->finish_save();
      const bool saves =
          save_every > 0 && s >= warmup && (s - warmup) % save_every == save_every / 2;
      if (saves) {
        engine->pause_clock();
        if (engine->saving()) engine->finish_save();
        if (beside) {
          engine->save_in_background(save_dir, keep_one);
        } else {
          engine->save(save_dir);
          if (world.speaks()) keep_one();
        }
        engine->resume_clock();
        stalls.push_back(1e3 * (tessera::now_s() - trained));
      }
      if (s < warmup) continue;
      ms.push_back(1e3 * last.seconds);
      wall_s += tessera::now_s() - start;
      breakdown = tessera::engine::breakdown_line(last);
    }
    const double drain_start = tessera::now_s();
    if (engine->saving()) engine->finish_save();
    const double drain_ms = 1e3 * (tessera::now_s() - drain_start);
    if (world.speaks()) {
      std::vector<double> sorted = ms;
      std::sort(sorted.begin(), sorted.end());
      const double median = sorted[sorted.size() / 2];
      const auto list = [](const std::vector<double>& values) {
        std::string text;
        for (const double value : values)
          text += fmt::format("{}{:.1f}", text.empty() ? "" : ", ", value);
        return text;
      };
      const std::string saving =
          save_every == 0 ? ""
                          : fmt::format(R"(, "save": "{}", "stall_ms": [{}], "drain_ms": {:.1f})",
                                        beside ? "beside" : "waiting",
                                        list(stalls),
                                        drain_ms);
      std::printf(
          "%s\n",
          fmt::format(
              R"({{"what": "tessera_step", "dtype": "{}", "stage": {}, "ranks": {}, "threads": {}, "B": {}, "T": {}, "tokens_per_s": {:.1f}, )"
              R"("step_ms": [{}], "peak_mb": {}, "loss_last": {:.4f}, "wall_ms": {:.1f}{}}})",
              dtype,
              plan.zero_stage,
              ranks,
              plan.threads,
              batch,
              length,
              static_cast<double>(batch * length) / median * 1e3,
              list(ms),
              last.mem_peak_bytes >> 20,
              last.loss,
              1e3 * wall_s,
              saving)
              .c_str());
      std::fprintf(stderr, "%s\n", breakdown.c_str());
    }
    engine->finish();
    world.transport().barrier(world.everyone(), TESSERA_HERE("end of the benchmark"))->wait();
    return 0;
  });
}

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> given;
  for (int i = 1; i + 1 < argc; i += 2)
    given[argv[i]] = argv[i + 1];
  try {
    return run(std::move(given));
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "%s\n", error.text().c_str());
    return tessera::exit_code(error.kind());
  }
}
