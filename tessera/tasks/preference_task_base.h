// SPDX-License-Identifier: Apache-2.0
// The common base of tasks whose samples are pairs of completions with a preference.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tessera/tasks/preference_pairs.h"
#include "tessera/tasks/record_task.h"

namespace tessera::tasks {

/// Describes the option "chat_template".
void describe_chat_template(std::string& chat_template, config::Fields& fields);

/// Opens records as PreferenceSamples.
class PreferenceTaskBase : public RecordTask {
 public:
  struct Settings {
    PreferenceKind kind = PreferenceKind::Pairs;
    bool reference = false, margins = false, aligned = false;
    std::string chat_template;
  };
  explicit PreferenceTaskBase(Settings settings) : settings_(std::move(settings)) {}

  [[nodiscard]] bool streams() const override { return true; }
  [[nodiscard]] std::vector<data::TensorSpec> tensors(std::int64_t sequence_length) const override;

 private:
  [[nodiscard]] ReadRecords reader(const DataRequest& request) const override;
  [[nodiscard]] const char* noun() const override { return "preferences"; }
  [[nodiscard]] PreferenceOptions samples(std::int64_t length,
                                          std::int32_t pad_id,
                                          std::int64_t micro_batch) const;
  Settings settings_;
};

}  // namespace tessera::tasks
