// SPDX-License-Identifier: Apache-2.0
#include "tessera/interop/monitor_flags.h"

#include <string_view>

#include <fmt/format.h>

#include "tessera/base/text.h"

namespace tessera::interop {
namespace {

void set(const std::string& typed, const std::string& key, json::Value value, ForeignFlags& out) {
  out.settings.push_back({typed, key, std::move(value)});
}

/// Enables the monitor, with the names that dashboards of Hugging Face's Trainer use.
void enable(const std::string& typed, const std::string& section, ForeignFlags& out) {
  set(typed, section + ".enabled", json::Value::boolean(true), out);
  set(typed, section + ".tags", json::Value::string("huggingface"), out);
}

}  // namespace

void add_report_to(const std::string& typed, const std::string& value, ForeignFlags& out) {
  for (const std::string& part : text::split(value, ',')) {
    const std::string name = text::lower(text::trim(part));
    if (name == "tensorboard" || name == "all") {
      enable(typed, "tensorboard", out);
    } else if (name == "wandb") {
      enable(typed, "wandb", out);
      set(typed, "wandb.project", json::Value::string("huggingface"), out);
    } else if (name == "comet_ml" || name == "comet") {
      enable(typed, "comet", out);
    }
    const bool known = name == "tensorboard" || name == "wandb" || name == "comet_ml" ||
                       name == "comet" || name == "none" || name.empty();
    if (!known) {
      out.notes.push_back(fmt::format(
          "{} {}: files are written for tensorboard{}; metrics.jsonl in the run folder has every "
          "number",
          typed,
          text::trim(part),
          name == "all" ? ", and for wandb and comet_ml if they are named"
                        : ", wandb and comet_ml"));
    }
  }
}

void add_board_folder(const std::string& typed,
                      const std::string& folder,
                      bool enable,
                      ForeignFlags& out) {
  if (enable) set(typed, "tensorboard.enabled", json::Value::boolean(true), out);
  set(typed, "tensorboard.output_path", json::Value::string(folder), out);
  set(typed, "tensorboard.job_name", json::Value::string(""), out);
}

void add_wandb_project(const std::string& typed, const std::string& project, ForeignFlags& out) {
  set(typed, "wandb.enabled", json::Value::boolean(true), out);
  set(typed, "wandb.project", json::Value::string(project), out);
}

void add_run_name(const std::string& typed, const std::string& name, ForeignFlags& out) {
  set(typed, "wandb.name", json::Value::string(name), out);
  set(typed, "comet.experiment_name", json::Value::string(name), out);
}

}  // namespace tessera::interop
