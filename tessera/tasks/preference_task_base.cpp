// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/preference_task_base.h"

#include <memory>

#include <fmt/format.h>

#include "tessera/base/log.h"
#include "tessera/base/text.h"

namespace tessera::tasks {

void describe_chat_template(std::string& chat_template, config::Fields& fields) {
  fields.field("chat_template",
               chat_template,
               {.text = "File with a chat template in Jinja, or chatml.",
                .default_text = "the one of the model's folder"});
}

PreferenceOptions PreferenceTaskBase::samples(std::int64_t length,
                                              std::int32_t pad_id,
                                              std::int64_t micro_batch) const {
  return {.length = length,
          .pad_id = pad_id,
          .kind = settings_.kind,
          .reference = settings_.reference,
          .margins = settings_.margins,
          .aligned = settings_.aligned,
          .group = micro_batch};
}

std::vector<data::TensorSpec> PreferenceTaskBase::tensors(std::int64_t sequence_length) const {
  const PreferenceSamples none(samples(sequence_length, 0, 0));
  std::vector<data::TensorSpec> out = none.tensors();
  std::erase_if(out, [](const data::TensorSpec& spec) { return spec.optional; });
  if (auto reference = none.made_by_model()) out.push_back(*std::move(reference));
  return out;
}

ReadRecords PreferenceTaskBase::reader(const DataRequest& request) const {
  return [this, &request](const std::vector<std::string>& names, data::Split split) {
    const auto chat = open_chat_template(settings_.chat_template,
                                         {request.model_folder, request.tokenizer_folder},
                                         request.tokenizer);
    auto out = std::make_unique<PreferenceSamples>(
        samples(request.sequence_length, request.tokenizer.padding(), request.micro_batch));
    out->read_files(data::record_files(names, split),
                    record_options(request.options,
                                   settings_.kind == PreferenceKind::Pairs
                                       ? "{\"prompt\": \"...\", \"chosen\": \"...\", "
                                         "\"rejected\": \"...\"}"
                                       : "{\"prompt\": \"...\", \"completion\": \"...\", "
                                         "\"label\": true}"),
                    ConversationTokenizer(request.tokenizer, chat ? &*chat : nullptr),
                    request.how.poll);
    if (out->left_out() > 0) {
      log::warn_once(
          fmt::format("{} of {} records are left out: their completions do not fit "
                      "into data.sequence_length, which two texts share",
                      text::with_commas(out->left_out()),
                      text::with_commas(out->stats().documents)));
    }
    return out;
  };
}

}  // namespace tessera::tasks
