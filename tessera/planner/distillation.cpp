// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/distillation.h"

#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/models/model_source.h"
#include "tessera/models/objectives/distilled.h"
#include "tessera/nn/block.h"

namespace tessera::planner {
namespace {

constexpr const char* kTeacher = "distill.teacher";

}  // namespace

void plan_distillation(const models::DistillOptions& options,
                       const DataPlan& data,
                       DType working,
                       ModelPlan& model,
                       std::vector<std::string>& notes,
                       config::Problems& problems,
                       const config::Origins& origins) {
  const auto refuse = [&](const char* path, std::string what, std::string fix) {
    problems.add(origins.place(path), path, std::move(what), std::move(fix));
  };
  if (!options.teacher) {
    for (const char* key :
         {"distill.layers", "distill.temperature", "distill.alpha", "distill.label_weight"}) {
      if (origins.given(key))
        refuse(key, "has no effect without distill.teacher", "name a teacher");
    }
    return;
  }
  if (!options.enabled()) {
    if (options.layers.is_null()) {
      refuse(
          kTeacher, "has no effect with alpha 0 and without layers", "set distill.alpha above 0");
    }
    if (options.label_weight)
      refuse("distill.label_weight", "has no effect with alpha 0", "remove it");
    return;
  }
  const models::ObjectiveChoice& objective = model.resolved.objective;
  const std::optional<models::DistillForm> form = models::distill_form(objective);
  if (!form) {
    refuse(kTeacher,
           fmt::format("not built: a teacher for the objective {}", objective.name),
           "distill a model that predicts tokens, labels or numbers: pretrain, sft, seq2seq, "
           "masked_lm, classify, regression, image_classify, tag");
    return;
  }
  if (form->predictions == models::Predictions::Numbers && origins.given("distill.temperature")) {
    refuse("distill.temperature",
           "has no effect on predicted numbers, whose squared difference is learned",
           "remove it");
  }
  const models::ModelSource source = models::open_model_source(*options.teacher);
  if (models::source_tokenizer(source)->fingerprint() != data.tokenizer->fingerprint()) {
    refuse(kTeacher,
           fmt::format("{} has another tokenizer than the model", *options.teacher),
           "choose a teacher with the model's tokenizer, or tokenizer.vocab of the teacher");
    return;
  }
  config::Problems part;
  const models::Resolved teacher =
      models::resolve(source.model, data.tokenizer->size(), std::nullopt, part, {}, objective);
  part.raise();
  if (teacher.max_positions > 0 && teacher.max_positions < data.sequence_length) {
    refuse(kTeacher,
           fmt::format("{} has {} positions, and samples have {} tokens",
                       *options.teacher,
                       teacher.max_positions,
                       data.sequence_length),
           "set data.sequence_length to at most the teacher's positions");
  }
  std::int64_t parameters = 0;
  for (const auto& info : nn::parameters_of(teacher.model))
    parameters += info->numel();
  const std::int64_t bytes = parameters * (working == DType::F32 ? 4 : 2);
  model.teacher_bytes = bytes;
  notes.push_back(fmt::format("distill: a rank holds the teacher {} in addition to the model, {}",
                              *options.teacher,
                              text::bytes(static_cast<std::uint64_t>(bytes))));
}

}  // namespace tessera::planner
