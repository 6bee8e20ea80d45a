// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/evaluate.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/engine/batches.h"
#include "tessera/nn/context_parallel/context_parallel.h"

namespace tessera::engine {

EvalReport evaluate(parallel::Executor& executor,
                    comm::World& world,
                    const data::Dataset& dataset,
                    std::int64_t samples,
                    std::int64_t micro_batch,
                    const EvalRounds& rounds) {
  const std::int64_t batches = (samples + micro_batch - 1) / micro_batch;
  const comm::Group& group = world.group(mesh::AxisSet::dp());
  // Only the stage with the objective has something to add.
  const comm::Group& all =
      world.group({mesh::Axis::Pp, mesh::Axis::DpRep, mesh::Axis::DpShard, mesh::Axis::Cp});
  const nn::ContextParallel* const shared = executor.model().context_parallel();
  std::vector<double> sums(static_cast<std::size_t>(batches), 0.0), counts = sums;
  const auto compute = [&](std::int64_t i) {
    if (i >= batches) return executor.infer_nothing();
    std::vector<std::int64_t> indices;
    const std::int64_t end = std::min(samples, (i + 1) * micro_batch);
    for (std::int64_t s = i * micro_batch; s < end; ++s)
      indices.push_back(s);
    nn::StepContext context(nn::Mode::Eval, 0);
    nn::Batch batch = make_batch(dataset, indices, indices);
    if (shared != nullptr) batch = nn::own_tokens(batch, *shared);
    const nn::Outcome out = executor.infer(batch, context);
    world.show_life();
    world.transport().progress();
    if (out.terms.empty()) return;
    sums[static_cast<std::size_t>(i)] = out.terms.front().sum.item<double>();
    counts[static_cast<std::size_t>(i)] = executor.model().objective()->denominators(batch).at(0);
  };
  for (std::int64_t first = 0; first < batches; first += group.size()) {
    if (rounds.before) rounds.before();
    compute(first + group.index);
    if (rounds.after) rounds.after();
  }
  // Every entry is written by one rank and is zero elsewhere, so these sums are exact; where ranks
  // share the tokens, each writes those of its own.
  sums = world.all_reduce(all, std::move(sums), comm::Op::Sum, TESSERA_HERE("evaluation losses"));
  counts =
      world.all_reduce(all, std::move(counts), comm::Op::Sum, TESSERA_HERE("evaluation tokens"));
  EvalReport report;
  double total = 0, tokens = 0;
  for (std::size_t i = 0; i < sums.size(); ++i) {
    total += sums[i];
    tokens += counts[i];
  }
  TESSERA_REQUIRE(tokens > 0,
                  Data,
                  fmt::format("the {} {} to evaluate on have no token to predict",
                              samples,
                              samples == 1 ? "sample" : "samples"),
                  "evaluate on more, or other, data");
  report.tokens = static_cast<std::int64_t>(tokens);
  report.loss = total / tokens;
  return report;
}

}  // namespace tessera::engine
