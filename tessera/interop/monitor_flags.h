// SPDX-License-Identifier: Apache-2.0
// Flags of Hugging Face and Megatron-LM that choose where a training is shown.
#pragma once

#include <string>

#include "tessera/interop/foreign_flags.h"

namespace tessera::interop {

/// Adds Hugging Face's --report_to: names separated by commas. Programs for which tessera writes no
/// files are noted.
void add_report_to(const std::string& typed, const std::string& value, ForeignFlags& out);

/// Adds the folder of the event files themselves. `enable`: Megatron-LM's --tensorboard-dir also
/// enables TensorBoard, Hugging Face's --logging_dir does not.
void add_board_folder(const std::string& typed,
                      const std::string& folder,
                      bool enable,
                      ForeignFlags& out);

/// Adds Megatron-LM's --wandb-project, which enables W&B.
void add_wandb_project(const std::string& typed, const std::string& project, ForeignFlags& out);

/// Adds Hugging Face's --run_name, which every monitor shows.
void add_run_name(const std::string& typed, const std::string& name, ForeignFlags& out);

}  // namespace tessera::interop
