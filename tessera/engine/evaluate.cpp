// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/evaluate.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/engine/batches.h"
#include "tessera/engine/predictions.h"
#include "tessera/nn/context_parallel/context_parallel.h"

namespace tessera::engine {
namespace {

using BatchTerms = std::vector<std::vector<parallel::TermValues>>;  ///< [batch]

/// The terms of all batches; the ranks of `group` agree on them.
std::vector<TermKey> keys_of(comm::World& world,
                             const comm::Group& group,
                             const BatchTerms& terms,
                             int objective) {
  std::vector<TermKey> mine;
  for (const std::vector<parallel::TermValues>& batch : terms) {
    for (const parallel::TermValues& term : batch)
      mine.push_back({term.block, term.name, term.denominator, term.weight});
  }
  return agree_on_terms(world, group, mine, objective);
}

/// Sums every term and every denominator over the batches, in their order.
EvalReport report_of(comm::World& world,
                     const comm::Group& group,
                     const BatchTerms& terms,
                     const std::vector<std::vector<double>>& counts,
                     int objective) {
  const std::vector<TermKey> keys = keys_of(world, group, terms, objective);
  std::size_t num_counts = 0;
  for (const TermKey& key : keys) {
    TESSERA_REQUIRE(
        key.denominator >= 0,
        Shape,
        fmt::format("block {}: the term \"{}\" of the loss is divided by denominator {}",
                    key.block,
                    key.name,
                    key.denominator),
        "let Term::denominator count from 0");
    num_counts = std::max(num_counts, static_cast<std::size_t>(key.denominator) + 1);
  }
  // [batch][term], then [batch][denominator]. One rank writes each entry and the others have zero,
  // so these sums are exact; if ranks share the tokens, each writes the values of its own tokens.
  std::vector<double> values;
  for (const std::vector<parallel::TermValues>& batch : terms) {
    const std::vector<double> of_batch = values_in_order(keys, batch, 1);
    values.insert(values.end(), of_batch.begin(), of_batch.end());
  }
  for (std::vector<double> of_batch : counts) {
    of_batch.resize(num_counts, 0.0);
    values.insert(values.end(), of_batch.begin(), of_batch.end());
  }
  values = world.all_reduce(
      group, std::move(values), comm::Op::Sum, TESSERA_HERE("evaluation losses and tokens"));
  const std::size_t first_count = terms.size() * keys.size();
  const auto total = [&](std::size_t begin, std::size_t each) {
    double sum = 0.0;
    for (std::size_t i = 0; i < terms.size(); ++i)
      sum += values[begin + i * each];
    return sum;
  };

  EvalReport report;
  for (std::size_t k = 0; k < keys.size(); ++k) {
    const double denominator =
        total(first_count + static_cast<std::size_t>(keys[k].denominator), num_counts);
    const double mean = denominator == 0 ? 0.0 : total(k, keys.size()) / denominator;
    if (keys[k].block == objective) {
      // Terms of other blocks, such as those that balance experts, are only for training.
      if (keys[k].weight != 0) report.loss += keys[k].weight * mean;
      // The first denominator counts predicted tokens; others may be sums of weights.
      if (k == 0) report.tokens = static_cast<std::int64_t>(total(first_count, num_counts));
    }
    if (Metric* const known = find_metric(report.metrics, keys[k].name)) {
      known->mean += mean;
    } else {
      report.metrics.push_back({keys[k].name, mean, denominator});
    }
  }
  return report;
}

}  // namespace

EvalReport evaluate(parallel::Executor& executor,
                    comm::World& world,
                    const data::Dataset& dataset,
                    std::int64_t samples,
                    std::int64_t micro_batch,
                    const EvalRounds& rounds,
                    const tasks::Task* task) {
  TESSERA_REQUIRE(!dataset.made_by_model(),
                  Unsupported,
                  fmt::format("the loss of {} compares the model with what it was before training, "
                              "which is not here",
                              dataset.name()),
                  "read the evaluations in the run's metrics.jsonl, or compare answers with "
                  "tessera generate");
  const std::int64_t batches = (samples + micro_batch - 1) / micro_batch;
  const comm::Group& group = world.group(mesh::AxisSet::dp());
  // Only the stage with the objective contributes.
  const comm::Group& all = world.group(mesh::AxisSet{mesh::Axis::Pp} | mesh::AxisSet::tokens());
  const nn::ContextParallel* const shared = executor.model().context_parallel();
  // The results of this rank's batches; entries of other batches are empty.
  std::vector<std::vector<parallel::TermValues>> terms(static_cast<std::size_t>(batches));
  std::vector<std::vector<double>> counts(terms.size());
  // Ranks that share the tokens of a sample do not have the logits of all of them.
  const bool predicts = task != nullptr && task->has_metrics() && shared == nullptr;
  PredictionsOfBatches predictions(terms.size());
  const auto compute = [&](std::int64_t i) {
    if (i >= batches) return executor.infer_nothing();
    std::vector<std::int64_t> indices;
    const std::int64_t end = std::min(samples, (i + 1) * micro_batch);
    for (std::int64_t s = i * micro_batch; s < end; ++s)
      indices.push_back(s);
    nn::StepContext context(nn::Mode::Eval, 0);
    context.step = rounds.step;
    context.want_logits = predicts;
    nn::Batch batch = make_batch(world, dataset, indices, indices);
    if (shared != nullptr) batch = nn::own_tokens(batch, *shared, executor.model().objective());
    const nn::Outcome outcome = executor.infer(batch, context, &terms[static_cast<std::size_t>(i)]);
    if (predicts) predictions.add(static_cast<std::size_t>(i), outcome, batch);
    world.show_life();
    world.transport().progress();
    if (const nn::Objective* const objective = executor.model().objective())
      counts[static_cast<std::size_t>(i)] = objective->denominators(batch);
  };
  for (std::int64_t first = 0; first < batches; first += group.size()) {
    if (rounds.before) rounds.before();
    compute(first + group.index);
    if (rounds.after) rounds.after();
  }
  EvalReport report = report_of(world, all, terms, counts, executor.model().num_blocks() - 1);
  TESSERA_REQUIRE(report.tokens > 0,
                  Data,
                  fmt::format("the {} {} to evaluate on have no token to predict",
                              samples,
                              samples == 1 ? "sample" : "samples"),
                  "evaluate on more, or other, data");
  report.samples = samples;
  report.of_samples = dataset.size();
  if (!predicts) return report;
  report.predictions = predictions.gather(world, all);
  // A user's model may have no logits.
  if (report.predictions.rows() == 0 || report.predictions.label_width == 0) return report;
  for (const tasks::NamedValue& value : task->metrics(report.predictions)) {
    if (find_metric(report.metrics, value.name) == nullptr) {
      report.metrics.push_back(
          {value.name, value.value, static_cast<double>(report.predictions.rows())});
    }
  }
  return report;
}

std::string part_text(const EvalReport& report) {
  if (report.samples >= report.of_samples) return {};
  return fmt::format(" of the first {} of {} samples",
                     text::with_commas(report.samples),
                     text::with_commas(report.of_samples));
}

std::string counted_by(const data::Dataset& dataset, const models::ObjectiveChoice& objective) {
  const std::vector<data::TensorSpec> specs = dataset.tensors();
  const auto has = [&](const char* name) {
    return std::ranges::find(specs, name, &data::TensorSpec::name) != specs.end();
  };
  if (has("second_text")) return has("wanted") ? "completions" : "pairs";
  const bool classes = objective.options.find("num_labels") != nullptr;
  return !classes && has("labels") ? "tokens" : "labels";
}

}  // namespace tessera::engine
