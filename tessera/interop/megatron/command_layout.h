// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's --pipeline-model-parallel-layout: the blocks of every stage as a word.
#pragma once

#include "tessera/interop/command_meaning.h"

namespace tessera::interop::megatron {

/// Sets parallel.pipeline.partition and chunks from a layout such as "Et*3|(tt|)*4tL": E is the
/// embedding, t a layer and L the loss, * repeats, and | ends a stage. Refuses stages that predict
/// several tokens (m) and layouts that do not have the model's layers.
void set_pipeline_layout(Meaning& meaning);

}  // namespace tessera::interop::megatron
