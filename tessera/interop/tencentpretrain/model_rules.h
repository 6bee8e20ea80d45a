// SPDX-License-Identifier: Apache-2.0
// TencentPretrain's models: a configuration of its keys, a vocabulary, and a file of weights.
#pragma once

#include <string_view>

#include "tessera/interop/command_meaning.h"

namespace tessera::interop::tencentpretrain {

/// Sets the tokenizer by --vocab_path, --merges_path or --spm_model_path. Refuses other kinds, and
/// files that do not exist.
void set_tokenizer(Meaning& meaning);

/// Sets model.* from the configuration, or model.from if --pretrained_model_path names a run, a
/// folder or a file of weights. `target`: the head of the task, or empty for those of the
/// configuration.
void set_model(Meaning& meaning, std::string_view target);

/// Returns the folder, run or checkpoint of a model that a command reads: the setting's path, or
/// for a file of weights a folder in the cache of tessera with the configuration and the vocabulary
/// next to a link to the file. `classes`: of a classifier, else 0. Empty, with a problem: there is
/// none.
std::string model_folder(Meaning& meaning,
                         const ForeignFlags::Setting& weights,
                         std::string_view target,
                         std::int64_t classes);

}  // namespace tessera::interop::tencentpretrain
