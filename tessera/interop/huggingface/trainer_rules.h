// SPDX-License-Identifier: Apache-2.0
// The meaning of options of Hugging Face's Trainer together.
#pragma once

#include <string>
#include <string_view>

#include "tessera/interop/command_meaning.h"

namespace tessera::interop::huggingface {

/// Keeps the first records of a key's data ("data.train"), as many as `most` says; all of its files
/// together. Nothing happens without data. Throws the errors of data::slice_files().
void limit_records(Meaning& meaning, std::string_view key, const ForeignFlags::Setting& most);

/// Applies the rules of TrainingArguments: the schedule with its warm-up, the optimizer, precision,
/// when a training is evaluated and saved, its length, the best model. Other programs that train
/// with the Trainer use them, too.
void apply_trainer(Meaning& meaning);

/// Sets data.train, data.validation and data.test from the name of a data set on this machine
/// (dataset_names.h). `split`: names of its parts; empty parts are not set. Refuses a name that is
/// not found, with the command that fetches it.
struct Splits {
  std::string train = "train", validation = "validation", test = "test";
};
void use_dataset(Meaning& meaning,
                 const ForeignFlags::Setting& name,
                 const std::string& config,
                 const Splits& splits);

/// Sets model.from, and refuses a name that is not found, with the command that fetches it.
void use_model(Meaning& meaning, const ForeignFlags::Setting* name);

/// Applies --config_overrides n_embd=10,n_layer=2: names of a family's config.json.
void set_overrides(Meaning& meaning);

/// Sets the tokenizer of a folder or name other than the model's.
void set_tokenizer(Meaning& meaning, const ForeignFlags::Setting& name);

/// Sets the optimizer by a name of the Trainer ("adamw_torch_fused"), with its betas and epsilon.
void set_optimizer(Meaning& meaning, const ForeignFlags::Setting& name);

/// True if the first record of data.train has the field. False without records.
bool has_field(const Meaning& meaning, const std::string& field);

/// Sets an interval: a number of steps, or below 1 a share of all updates.
void set_interval(Meaning& meaning, std::string_view key, const ForeignFlags::Setting& steps);

}  // namespace tessera::interop::huggingface
