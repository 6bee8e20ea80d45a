// SPDX-License-Identifier: Apache-2.0
// Published trainings of large models (tests/predict/published/, each row with its source), as
// plans.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "support/source_dir.h"

#include "tessera/base/files.h"
#include "tessera/config/json.h"
#include "tessera/predict/described_machine.h"
#include "tessera/predict/many_ranks.h"
#include "tessera/predict/step_time.h"

namespace tessera::test {

using Row = std::map<std::string, std::string>;

/// The rows of a table, by the names of its columns. Fields may be quoted.
inline std::vector<Row> published(const std::string& name) {
  const std::string text =
      files::read(source_dir() / "tests" / "predict" / "published" / (name + ".csv"));
  std::vector<std::vector<std::string>> lines(1);
  std::string field;
  bool quoted = false;
  for (const char c : text) {
    if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == ',' || c == '\n')) {
      lines.back().push_back(std::move(field));
      field.clear();
      if (c == '\n') lines.emplace_back();
    } else if (c != '\r') {
      field += c;
    }
  }
  std::vector<Row> out;
  for (std::size_t i = 1; i < lines.size(); ++i) {
    if (lines[i].size() != lines[0].size()) continue;
    Row& row = out.emplace_back();
    for (std::size_t k = 0; k < lines[0].size(); ++k)
      row[lines[0][k]] = lines[i][k];
  }
  return out;
}

inline double number(const Row& row, const std::string& key) {
  return std::stod(row.at(key));
}

/// A GPT-2 of any size, and how it is trained.
struct Published {
  std::int64_t layers = 0, hidden = 0, heads = 0, vocab = 51200, length = 2048;
  std::int64_t tensor = 1, pipeline = 1, chunks = 1, ranks = 1, micro = 1, accumulation = 1;
  int zero = 0;
  bool sequence = false, scatter_gather = false;
  std::string recompute = "none";  ///< none, selective or full
  double dropout = 0.1;
};

inline planner::Plan plan_of(const Published& of) {
  const auto integer = [](std::int64_t value) { return json::Value::integer(value); };
  const auto word = [](const char* text) { return json::Value::string(text); };
  json::Value source;
  json::Value& model = source["model"];
  model["family"] = word("gpt2");
  model["num_layers"] = integer(of.layers);
  model["hidden_size"] = integer(of.hidden);
  model["num_heads"] = integer(of.heads);
  model["vocab_size"] = integer(of.vocab);
  model["max_positions"] = integer(of.length);
  model["dropout"] = json::Value::number(of.dropout);
  source["tokenizer"]["type"] = word("byte");
  source["data"]["train"] = word("text.txt");
  source["data"]["sequence_length"] = integer(of.length);
  source["trainer"]["max_steps"] = integer(1);
  source["bf16"]["enabled"] = json::Value::boolean(true);
  source["communication_data_type"] = word("bf16");
  source["gradient_reduction"] = word("once");
  source["train_micro_batch_size_per_gpu"] = integer(of.micro);
  source["gradient_accumulation_steps"] = integer(of.accumulation);
  source["zero_optimization"]["stage"] = integer(of.zero);
  if (of.recompute != "none")
    source["activation_checkpointing"]["granularity"] = json::Value::string(of.recompute);
  json::Value& parallel = source["parallel"];
  parallel["tensor"]["size"] = integer(of.tensor);
  if (of.tensor > 1) parallel["tensor"]["mode"] = word("1d");
  parallel["sequence"] = json::Value::boolean(of.sequence);
  parallel["pipeline"]["size"] = integer(of.pipeline);
  if (of.chunks > 1) {
    parallel["pipeline"]["schedule"] = word("interleaved");
    parallel["pipeline"]["chunks"] = integer(of.chunks);
  }
  if (of.scatter_gather) parallel["pipeline"]["scatter_gather"] = json::Value::boolean(true);
  return predict::plan_of_many(source, static_cast<int>(of.ranks), "published.json");
}

/// A measured time of a step and the plan that takes it.
struct Measured {
  std::string name;
  Published of;
  double seconds = 0;
  std::string group;  ///< within which rows are scored together
};

/// FLOPs of an iteration with full recomputation. Source: Narayanan et al. 2021, section 5.1.
inline double flops_with_recomputation(const Published& of, double batch) {
  const double l = static_cast<double>(of.layers), h = static_cast<double>(of.hidden),
               s = static_cast<double>(of.length), v = static_cast<double>(of.vocab);
  return 96 * batch * s * l * h * h * (1 + s / (6 * h) + v / (16 * l * h));
}

/// Table 5 of Korthikanti et al. 2022: four models on A100, each with full recomputation and with
/// sequence parallelism and selective recomputation.
inline std::vector<Measured> korthikanti() {
  std::vector<Measured> out;
  for (const Row& row : published("korthikanti_table5_time")) {
    const auto of = [&](const char* key) { return std::stoll(row.at(key)); };
    Published base{.layers = of("layers"),
                   .hidden = of("hidden"),
                   .heads = of("heads"),
                   .vocab = of("vocab"),
                   .length = of("seq"),
                   .tensor = of("tp"),
                   .pipeline = of("pp"),
                   .chunks = of("virtual_chunks"),
                   .ranks = of("gpus"),
                   .micro = of("micro_batch"),
                   .accumulation = of("global_batch") / of("micro_batch"),
                   .scatter_gather = of("pp") > 1};
    base.recompute = "full";
    out.push_back({row.at("model") + " full", base, number(row, "iter_s_full_recompute"), "M1"});
    base.recompute = "selective";
    base.sequence = true;
    base.scatter_gather = false;
    out.push_back(
        {row.at("model") + " selective", base, number(row, "iter_s_seqpar_selective"), "M1"});
  }
  return out;
}

/// Tables 1 and 2 (PTD) of Narayanan et al. 2021, on A100, with full recomputation.
inline std::vector<Measured> megatron() {
  std::vector<Measured> out;
  for (const Row& row : published("megatron_sc21_table1")) {
    const auto of = [&](const char* key) { return std::stoll(row.at(key)); };
    const Published plan{.layers = of("layers"),
                         .hidden = of("hidden"),
                         .heads = of("heads"),
                         .vocab = of("vocab"),
                         .length = of("seq"),
                         .tensor = of("tp"),
                         .pipeline = of("pp"),
                         .chunks = of("virtual_chunks_v"),
                         .ranks = of("gpus"),
                         .micro = of("micro_batch"),
                         .accumulation = of("num_microbatches"),
                         .scatter_gather = of("pp") > 1,
                         .recompute = "full"};
    const double flops = flops_with_recomputation(plan, number(row, "global_batch"));
    out.push_back({row.at("params_B") + "B",
                   plan,
                   flops / (number(row, "gpus") * number(row, "tflops_per_gpu") * 1e12),
                   "M2"});
  }
  return out;
}

/// The two models of table 2 of Narayanan et al. 2021.
inline Published model_of_table2(const Row& row) {
  if (row.at("params_B") == "174.6") return {.layers = 96, .hidden = 12288, .heads = 96};
  return {.layers = 105, .hidden = 20480, .heads = 128};
}

inline std::vector<Measured> megatron_table2(const std::string& scheme) {
  std::vector<Measured> out;
  for (const Row& row : published("megatron_sc21_table2_zero3")) {
    if (row.at("scheme") != scheme) continue;
    Published plan = model_of_table2(row);
    const std::int64_t gpus = std::stoll(row.at("gpus")),
                       batch = std::stoll(row.at("global_batch"));
    plan.ranks = gpus;
    plan.micro = std::stoll(row.at("micro_batch"));
    plan.recompute = "full";
    if (scheme == "PTD") {
      plan.tensor = 8;
      plan.pipeline = std::stoll(row.at("model_parallel")) / 8;
      plan.scatter_gather = true;
    } else {
      plan.zero = 3;
    }
    plan.accumulation = batch / plan.micro / (gpus / (plan.tensor * plan.pipeline));
    const double seconds = flops_with_recomputation(plan, static_cast<double>(batch)) /
                           (static_cast<double>(gpus) * number(row, "tflops_per_gpu") * 1e12);
    out.push_back({row.at("params_B") + "B on " + row.at("gpus"),
                   plan,
                   seconds,
                   scheme == "PTD" ? "M2" : "M3 Selene"});
  }
  return out;
}

/// DeepSpeed's ZeRO-3 with a model of 175B parameters on Azure's A100, one step of one micro-batch.
inline std::vector<Measured> azure() {
  std::vector<Measured> out;
  for (const Row& row : published("zero3_azure_175b")) {
    Published plan{.layers = std::stoll(row.at("layers")),
                   .hidden = std::stoll(row.at("hidden")),
                   .heads = std::stoll(row.at("heads")),
                   .length = std::stoll(row.at("seq")),
                   .ranks = std::stoll(row.at("gpus")),
                   .micro = std::stoll(row.at("micro_batch")),
                   .zero = 3,
                   .recompute = "full"};
    const double flops = flops_with_recomputation(plan, static_cast<double>(plan.micro));
    out.push_back({"length " + row.at("seq") + ", " + row.at("gpus") + " ranks, micro-batch " +
                       row.at("micro_batch"),
                   plan,
                   flops / (number(row, "tflops_per_gpu_96formula") * 1e12),
                   "M3 Azure"});
  }
  return out;
}

/// The trainings of llm-foundry with FSDP; `group` is the kind of GPU.
inline std::vector<Measured> foundry() {
  std::map<std::string, Row> models;
  for (const Row& row : published("llm_foundry_mpt_configs"))
    models[row.at("model")] = row;
  std::vector<Measured> out;
  for (const Row& row : published("llm_foundry_mpt")) {
    if (row.at("activation_cpu_offload") == "True") continue;
    const Row& model = models.at(row.at("model"));
    Published plan{.layers = std::stoll(model.at("layers")),
                   .hidden = std::stoll(model.at("hidden")),
                   .heads = std::stoll(model.at("heads")),
                   .vocab = std::stoll(model.at("vocab")),
                   .length = std::stoll(row.at("seq")),
                   .ranks = std::stoll(row.at("gpus")),
                   .micro = std::stoll(row.at("micro_batch")),
                   .accumulation = std::stoll(row.at("grad_accum")),
                   .zero = row.at("sharding") == "FULL_SHARD" ? 3 : 2,
                   .recompute = row.at("activation_ckpt") == "True" ? "full" : "none",
                   .dropout = 0};
    const double tokens = static_cast<double>(plan.micro * plan.accumulation * plan.length);
    out.push_back({row.at("model") + ", length " + row.at("seq") + ", " + row.at("gpus") + " ranks",
                   plan,
                   tokens / number(row, "tokens_per_s_per_gpu"),
                   row.at("gpu") + " " + row.at("precision")});
  }
  return out;
}

/// The absolute errors of predictions, as shares.
struct Score {
  double mean = 0, most = 0;
  std::size_t rows = 0;
};

inline Score score(const std::vector<Measured>& rows,
                   const std::function<double(const Measured&)>& predicted) {
  Score out;
  for (const Measured& row : rows) {
    const double error = std::abs(predicted(row) / row.seconds - 1);
    out.mean += error / static_cast<double>(rows.size());
    out.most = std::max(out.most, error);
    ++out.rows;
  }
  return out;
}

/// One constant share of the peak, the best one in hindsight for the mean of the errors.
inline Score trivial(const std::vector<Measured>& rows,
                     const std::function<double(const Measured&)>& least_seconds) {
  Score best{.mean = HUGE_VAL};
  for (double share = 0.05; share < 1; share += 0.001) {
    const Score now = score(rows, [&](const Measured& row) { return least_seconds(row) / share; });
    if (now.mean < best.mean) best = now;
  }
  return best;
}

/// Compares a formula with what was printed, beside the trivial predictor: one constant, the best
/// in hindsight, times a size.
class FormulaGate {
 public:
  explicit FormulaGate(const char* name) : name_(name) {}
  FormulaGate(const FormulaGate&) = delete;
  FormulaGate& operator=(const FormulaGate&) = delete;
  /// `size`: what the trivial predictor knows of the row.
  void add(double ours, double printed, double size) { rows_.push_back({ours, printed, size}); }
  ~FormulaGate() {
    if (rows_.empty()) return;
    std::vector<double> ratios;
    for (const Row3& row : rows_)
      ratios.push_back(row.printed / row.size);
    std::sort(ratios.begin(), ratios.end());
    double best = HUGE_VAL, most_of_best = 0;
    for (const double constant : ratios) {
      double sum = 0, most = 0;
      for (const Row3& row : rows_) {
        const double error = std::abs(constant * row.size / row.printed - 1);
        sum += error;
        most = std::max(most, error);
      }
      if (sum >= best) continue;
      best = sum;
      most_of_best = most;
    }
    double sum = 0, most = 0;
    for (const Row3& row : rows_) {
      const double error = std::abs(row.ours / row.printed - 1);
      sum += error;
      most = std::max(most, error);
    }
    const auto count = static_cast<double>(rows_.size());
    std::printf(
        "%-34s %3zu rows: mean %.3f %%, most %.3f %%; one constant: mean %.1f %%, most %.1f %%\n",
        name_,
        rows_.size(),
        100 * sum / count,
        100 * most,
        100 * best / count,
        100 * most_of_best);
  }

 private:
  struct Row3 {
    double ours, printed, size;
  };
  const char* name_;
  std::vector<Row3> rows_;
};

}  // namespace tessera::test
