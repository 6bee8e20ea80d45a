// SPDX-License-Identifier: Apache-2.0
// Flags of Hugging Face and Megatron-LM that say where a training is shown.
#pragma once

#include <string>

#include "tessera/cli/foreign_flags.h"

namespace tessera::cli {

/// Hugging Face's --report_to: names separated by commas. Programs that tessera writes no files for
/// become a note.
void add_report_to(const std::string& typed, const std::string& value, ForeignFlags& out);

/// A folder that holds the event files themselves. `enable`: Megatron-LM's --tensorboard-dir also
/// switches TensorBoard on, Hugging Face's --logging_dir does not.
void add_board_folder(const std::string& typed,
                      const std::string& folder,
                      bool enable,
                      ForeignFlags& out);

/// Megatron-LM's --wandb-project, which switches W&B on.
void add_wandb_project(const std::string& typed, const std::string& project, ForeignFlags& out);

/// Hugging Face's --run_name, which every monitor shows.
void add_run_name(const std::string& typed, const std::string& name, ForeignFlags& out);

}  // namespace tessera::cli
