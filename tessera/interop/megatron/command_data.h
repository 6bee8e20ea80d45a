// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's options of tokenizers and data.
#pragma once

#include "tessera/interop/command_meaning.h"

namespace tessera::interop::megatron {

/// Sets the tokenizer, and the rows of the token embedding, which Megatron-LM rounds up, where the
/// number of tokens is known without reading the tokenizer. Refuses a tokenizer that is not found.
void set_tokens(Meaning& meaning);

/// Sets the data from --data-path and its kin, with weights, and the share that is held out.
void set_data(Meaning& meaning);

}  // namespace tessera::interop::megatron
