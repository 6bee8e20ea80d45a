// SPDX-License-Identifier: Apache-2.0
// The processing that AlbertTokenizer of transformers adds to sentencepiece.
#pragma once

#include "tessera/data/tokenizers/models.h"
#include "tessera/data/tokenizers/normalizers.h"
#include "tessera/data/tokenizers/settings.h"

namespace tessera::data::tokenizers {

/// Joins white space (`remove_space`), replaces `` and '' by ", removes accents (unless
/// `keep_accents`) and lowercases (`do_lower_case`).
NormalizerPtr albert_normalizer(const Settings& settings);

/// Encodes a piece that ends with a digit and a comma as two parts: the text before the comma, and
/// the comma.
ModelPtr albert_model(ModelPtr model, NormalizerPtr normalizer);

}  // namespace tessera::data::tokenizers
