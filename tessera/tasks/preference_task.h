// SPDX-License-Identifier: Apache-2.0
// What tasks have in common whose samples are pairs of texts with a preference.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tessera/tasks/preferences.h"
#include "tessera/tasks/task.h"

namespace tessera::tasks {

/// The option "chat_template".
void describe_chat_template(std::string& chat_template, config::Fields& fields);

/// Opens records as PreferenceSamples.
class PreferenceTask : public Task {
 public:
  struct Settings {
    PreferenceKind kind = PreferenceKind::Pairs;
    bool reference = false, margins = false;
    std::string chat_template;
  };
  explicit PreferenceTask(Settings settings) : settings_(std::move(settings)) {}

  [[nodiscard]] bool reads_records() const override { return true; }
  [[nodiscard]] data::Datasets open(const DataRequest& request) const override;
  [[nodiscard]] data::OpenedDataset open_held_out(const DataRequest& request,
                                                  const std::vector<std::string>& names,
                                                  const std::string& key) const override;

 private:
  [[nodiscard]] ReadRecords reader(const DataRequest& request) const;
  Settings settings_;
};

}  // namespace tessera::tasks
