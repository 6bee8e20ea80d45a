// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/with_data.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/data/sample_order.h"
#include "tessera/planner/data_plan.h"
#include "tessera/planner/recipe.h"
#include "tessera/planner/run_plan.h"

namespace tessera::planner {
namespace {

void check_length(std::int64_t planned, const data::Dataset& set, const char* what) {
  const std::int64_t length = set.sequence_length().value_or(planned);
  TESSERA_REQUIRE(
      length == planned,
      Config,
      fmt::format("the {} data has samples of {} tokens, the plan of {}", what, length, planned),
      "set data.sequence_length to the length of the samples");
}

/// Checks that both datasets can be read and that one model can read both.
void check_datasets(std::int64_t sequence_length, const data::Datasets& data) {
  data::check_tensors(*data.train);
  if (data.test != nullptr) data::check_tensors(*data.test);
  check_length(sequence_length, *data.train, "training");
  if (data.validation == nullptr) return;
  data::check_tensors(*data.validation);
  check_length(sequence_length, *data.validation, "validation");
  TESSERA_REQUIRE(data.train->tensors() == data.validation->tensors(),
                  Shape,
                  fmt::format("the training data ({}) and the validation data ({}) have samples of "
                              "other tensors",
                              data.train->name(),
                              data.validation->name()),
                  "let tensors() return the same names, element types and shapes for both");
}

/// The tensors that the data gives for every sample.
std::vector<data::TensorSpec> tensors_of(const data::Dataset& train) {
  std::vector<data::TensorSpec> out;
  for (data::TensorSpec& spec : train.tensors()) {
    if (!spec.optional) out.push_back(std::move(spec));
  }
  if (auto made = train.made_by_model()) out.push_back(*std::move(made));
  return out;
}

}  // namespace

PlanWithData with_data(const Plan& plan, const data::Datasets& data) {
  TESSERA_REQUIRE(data.train != nullptr && data.train->size() > 0,
                  Data,
                  "there is no sample to train on",
                  "give Datasets::train a dataset of at least one");
  DataPlan mine = plan.data();
  mine.sample = tensors_of(*data.train);
  // Samples that are not sequences count as one token each.
  if (!data.train->sequence_length()) mine.sequence_length = 1;
  check_datasets(mine.sequence_length, data);
  Course course = course_of(plan, data);
  const tasks::EvalOptions& eval = plan.run().eval;
  TESSERA_REQUIRE(
      !eval.when().any() || data.validation != nullptr,
      Config,
      fmt::format("eval.every is {}, but there is no validation data", eval.every.dump()),
      "set data.validation or data.validation_fraction, or eval.every to 0");
  return {with(plan, std::move(mine)), std::move(course)};
}

Course course_of(const Plan& plan, const data::Datasets& data, const Position& from) {
  const Recipe& recipe = plan.recipe();
  const data::BatchPlan batches(
      data.train->size(), recipe.global_batch, plan.data().options.drop_last, batch_sizes(recipe));
  const double epochs = recipe.epochs.value_or(1.0);
  // Earlier batches of another size have consumed another number of samples.
  const double by_epochs =
      recipe.max_steps && !recipe.epochs
          ? HUGE_VAL
          : static_cast<double>(from.step) + batches.steps_in(epochs, from.samples);
  const double by_steps = recipe.max_steps ? static_cast<double>(*recipe.max_steps) : HUGE_VAL;
  Course course{.max_steps = static_cast<std::int64_t>(std::min(by_epochs, by_steps)),
                .curve = std::nullopt};
  TESSERA_REQUIRE(course.max_steps > 0,
                  Config,
                  "there is nothing to train: the number of steps is 0",
                  "raise trainer.max_steps or trainer.epochs");
  // A schedule that depends on the number of steps can be checked only now.
  make_schedule(recipe, course, *make_rule(recipe));
  return course;
}

}  // namespace tessera::planner
