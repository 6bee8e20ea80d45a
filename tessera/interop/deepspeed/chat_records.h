// SPDX-License-Identifier: Apache-2.0
// Data sets of DeepSpeed-Chat whose records have fields of their own.
#pragma once

#include <optional>
#include <string_view>

#include "tessera/config/json.h"

namespace tessera::interop {

/// Returns whether DeepSpeed-Chat knows a data set of that name by other fields than prompt,
/// chosen and rejected.
bool has_own_fields(std::string_view dataset);

/// Returns whether DeepSpeed-Chat reads both parts of this data set from its split "train": nine
/// tenths for training, and a tenth for evaluation. Source: get_train_data() of its
/// raw_datasets.py.
bool has_train_split_alone(std::string_view dataset);
/// A record of such a data set as {"prompt": " Human: ... Assistant:", "chosen": " ..."}; absent:
/// it has no question or no answer.
std::optional<json::Value> chat_record(std::string_view dataset, const json::Value& record);

}  // namespace tessera::interop
