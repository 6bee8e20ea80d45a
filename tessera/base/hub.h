// SPDX-License-Identifier: Apache-2.0
// Models by the names that people use for them ("Qwen/Qwen2.5-0.5B", "bert-base-uncased"): folders
// that are already on this machine. Nothing is fetched.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera::hub {

namespace fs = std::filesystem;

/// A folder of a model on this machine.
struct LocalModel {
  std::string name;  ///< "Qwen/Qwen2.5-0.5B"
  fs::path folder;   ///< contains config.json
};

/// The folders in which models are looked for by name: those of TESSERA_MODELS, separated by
/// colons.
std::vector<fs::path> model_folders();
/// Hugging Face's cache of models: HF_HUB_CACHE, else HF_HOME/hub, else
/// XDG_CACHE_HOME/huggingface/hub, else
/// ~/.cache/huggingface/hub. Need not exist.
fs::path hub_cache();

/// Returns whether `text` has the form of a name on Hugging Face: "model" or "owner/model", with an
/// optional "@revision".
bool is_model_name(const std::string& text);
/// Returns the folder of the model with the name `text`: in one of model_folders() under its whole
/// name or its last part, else in the cache the snapshot of the revision ("main" without one).
/// std::nullopt if there is none. A file or folder of that path in the working directory is not
/// considered: callers try it first.
std::optional<fs::path> find_model(const std::string& text);
/// Returns `text` if something exists at that path or if it is not a name; else find_model(), or
/// `text` again.
fs::path model_path(const std::string& text);
/// The command that fetches a model of this name, as the fix of an error: "hf download NAME, or
/// name the folder of its files". Where the working directory has a folder `owner`, "owner/model"
/// is a path in it: then the fix names what is there.
std::string how_to_fetch(const std::string& name);

/// All models with a config.json in model_folders(), one or two levels deep, and the newest
/// snapshot of each in the cache; sorted by name. Folders that cannot be read are left out.
std::vector<LocalModel> local_models();
/// The sum of the sizes of the files in a folder, also behind links; not those of subfolders.
std::uint64_t bytes_of_folder(const fs::path& folder);

}  // namespace tessera::hub
