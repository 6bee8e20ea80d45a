// SPDX-License-Identifier: Apache-2.0
// What AlbertTokenizer of transformers does beside sentencepiece.
#pragma once

#include "tessera/data/tokenizers/models.h"
#include "tessera/data/tokenizers/normalizers.h"
#include "tessera/data/tokenizers/settings.h"

namespace tessera::data::tokenizers {

/// Joins white space (`remove_space`), writes `` and '' as ", drops accents (unless
/// `keep_accents`) and lowers (`do_lower_case`).
NormalizerPtr albert_normalizer(const Settings& settings);

/// Encodes a piece that ends with a comma behind a digit in two parts: what is before the comma as
/// a text of its own, and the comma.
ModelPtr albert_model(ModelPtr model, NormalizerPtr normalizer);

}  // namespace tessera::data::tokenizers
