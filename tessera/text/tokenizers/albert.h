// SPDX-License-Identifier: Apache-2.0
// The processing that AlbertTokenizer and CpmTokenizer of transformers add to sentencepiece.
#pragma once

#include "tessera/text/tokenizers/models.h"
#include "tessera/text/tokenizers/normalizers.h"
#include "tessera/text/tokenizers/settings.h"

namespace tessera::text::tokenizers {

/// Joins white space (`remove_space`), replaces `` and '' by ", removes accents (unless
/// `keep_accents`) and lowercases (`do_lower_case`, `lower` if no file has it).
NormalizerPtr albert_normalizer(const Settings& settings, bool lower = true);

/// Encodes a piece that ends with a digit and a comma as two parts: the text before the comma, and
/// the comma.
ModelPtr albert_model(ModelPtr model, NormalizerPtr normalizer);

}  // namespace tessera::text::tokenizers
