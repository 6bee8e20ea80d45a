// SPDX-License-Identifier: Apache-2.0
#include "tessera/cli/convert_target.h"

#include <algorithm>
#include <fstream>
#include <functional>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/manifest.h"
#include "tessera/interop/deepspeed/states.h"
#include "tessera/interop/gguf/reader.h"
#include "tessera/interop/gguf/writer.h"
#include "tessera/interop/model_export.h"
#include "tessera/interop/onnx/graph.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const fs::path& path, const std::string& why) {
  throw Error(Error::Kind::Config,
              fmt::format("{} {}", path.string(), why),
              "choose another path, or move the existing entry away");
}
[[noreturn]] void refuse_unwritten(const fs::path& path) {
  refuse(path, "is kept: it was not written by a conversion");
}

bool is_file(const fs::path& path) {
  return fs::is_regular_file(fs::symlink_status(path));
}
bool is_folder(const fs::path& path) {
  return fs::is_directory(fs::symlink_status(path));
}

/// The entries of a folder, sorted by name.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(folder))
    out.push_back(entry.path());
  std::sort(out.begin(), out.end());
  return out;
}

/// Requires that the folder has only plain files of these names.
void require_files(const fs::path& folder, const std::function<bool(const fs::path&)>& is_known) {
  for (const fs::path& path : entries_of(folder)) {
    if (!is_file(path) || !is_known(path)) refuse_unwritten(path);
  }
}
void require_files(const fs::path& folder, const std::set<std::string>& known) {
  require_files(folder,
                [&](const fs::path& path) { return known.count(path.filename().string()) > 0; });
}

/// True if a torch file begins as write_torch_weights() writes it; torch.save writes the file's own
/// name there.
bool is_converted_file(const fs::path& path) {
  constexpr std::size_t kLocalHeader = 30;
  constexpr std::string_view kRoot = "pytorch_model/";
  std::string begin(kLocalHeader + kRoot.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return file.good() && begin.starts_with("PK\x03\x04") && begin.ends_with(kRoot);
}

/// True for a GGUF file with the mark of write_gguf(); others were downloaded.
bool is_converted_gguf(const fs::path& path) {
  try {
    return interop::is_gguf(path) &&
           interop::GgufFile(path).flag(interop::kGgufMark).value_or(false);
  } catch (const Error&) {
    return false;
  }
}

/// True for an ONNX file that begins as write_onnx() writes it.
bool is_converted_onnx(const fs::path& path) {
  if (path.extension() != ".onnx") return false;
  const std::string_view mark = interop::onnx_mark();
  std::string begin(mark.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return file.good() && begin == mark;
}

/// True if the bytes of `word` occur in the file.
bool occurs_in(const fs::path& path, const std::string& word) {
  constexpr std::size_t kPiece = std::size_t{1} << 20;
  std::ifstream file(path, std::ios::binary);
  std::string held;
  while (file) {
    const std::size_t kept = std::min(held.size(), word.size() - 1);
    held.erase(0, held.size() - kept);
    held.resize(kept + kPiece);
    file.read(held.data() + kept, static_cast<std::streamsize>(kPiece));
    held.resize(kept + static_cast<std::size_t>(file.gcount()));
    if (held.find(word) != std::string::npos) return true;
  }
  return false;
}

std::set<std::string> names_beside(const fs::path& folder) {
  std::set<std::string> out;
  for (const auto& [name, content] : interop::files_beside(folder))
    out.insert(name);
  return out;
}

/// Requires the layout of write_universal().
void require_universal(const fs::path& folder) {
  static const std::regex ours("global_step\\d+");
  const std::string tag =
      interop::deepspeed::tag_in(folder / "latest_universal").value_or(std::string());
  const bool is_ours = std::regex_match(tag, ours);
  for (const fs::path& path : entries_of(folder)) {
    const bool known = path.filename() == "latest_universal"
                           ? is_file(path)
                           : is_ours && path.filename() == tag && is_folder(path);
    if (!known) refuse_unwritten(path);
  }
  if (!is_folder(folder / tag / "zero")) refuse_unwritten(folder / "latest_universal");
  static const std::set<std::string> models = {"mp_rank_00_model_states.pt",
                                               "zero_pp_rank_0_mp_rank_00_model_states.pt"};
  for (const fs::path& path : entries_of(folder / tag)) {
    const std::string name = path.filename().string();
    if (name != "zero" && (models.count(name) == 0 || !is_file(path))) refuse_unwritten(path);
  }
  for (const fs::path& path : entries_of(folder / tag / "zero")) {
    if (path.filename() == "optimizer_state.pt" && is_file(path)) continue;
    if (!is_folder(path)) refuse_unwritten(path);
    require_files(path, {"fp32.pt", "exp_avg.pt", "exp_avg_sq.pt", "step.pt"});
  }
}

/// Requires a tessera checkpoint that was converted from another program's. A run's checkpoint has
/// the same file names.
void require_imported(const fs::path& folder) {
  std::set<std::string> known = names_beside(folder);
  known.insert({std::string(checkpoint::kManifestName), checkpoint::shard_name(0)});
  require_files(folder, known);
  bool imported = false;
  try {
    const checkpoint::Checkpoint opened(folder);
    imported = opened.meta().extra.find("imported") != nullptr;
  } catch (const Error&) {
    refuse(folder, "is an unreadable checkpoint");
  }
  if (!imported) refuse(folder, "is the checkpoint of a run");
}

/// Requires a model as write_model() writes it: its config.json, and weights in one format.
void require_hugging_face(const fs::path& folder) {
  static const std::regex shard("model-\\d{5,}-of-\\d{5,}\\.safetensors");
  std::set<std::string> known = names_beside(folder);
  known.insert("config.json");
  bool safetensors = false, torch = false;
  require_files(folder, [&](const fs::path& path) {
    const std::string name = path.filename().string();
    const bool is_weights = name == "model.safetensors" || std::regex_match(name, shard);
    const bool is_torch = name == "pytorch_model.bin" && is_converted_file(path);
    safetensors = safetensors || is_weights;
    torch = torch || is_torch;
    return is_weights || is_torch || name == "model.safetensors.index.json" ||
           known.count(name) > 0;
  });
  if (safetensors == torch || !fs::exists(folder / "config.json"))
    refuse(folder, "is not the folder of a converted model: config.json and weights of one form");
}

fs::path real(const fs::path& path) {
  return fs::weakly_canonical(fs::absolute(path).lexically_normal());
}

/// True if `inner` is `outer` or inside it.
bool lies_in(const fs::path& inner, const fs::path& outer) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace

fs::path onnx_data_of(const fs::path& model) {
  fs::path out = model;
  return out += ".data";
}

bool is_converted_onnx_data(const fs::path& data) {
  if (data.extension() != ".data" || !is_file(data)) return false;
  const fs::path model = fs::path(data).replace_extension();
  return is_converted_onnx(model) && occurs_in(model, data.filename().string());
}

void require_replaceable(const fs::path& target, const fs::path& source) {
  std::error_code ignored;
  if (fs::equivalent(target, source, ignored)) refuse(target, "is the source of the conversion");
  const fs::path there = real(target.parent_path()) / target.filename(), from = real(source);
  if (lies_in(from, there))
    refuse(target, fmt::format("holds {}, the source of the conversion", source.string()));
  // Of a run only the checkpoints are read, not the files next to them.
  const fs::path read =
      is_folder(from / checkpoint::kFolderOfRun) ? from / checkpoint::kFolderOfRun : from;
  if (lies_in(there, read))
    refuse(target, fmt::format("lies in {}, the source of the conversion", source.string()));
  if (is_file(target)) {
    if (!is_converted_file(target) && !is_converted_gguf(target) && !is_converted_onnx(target) &&
        !is_converted_onnx_data(target))
      refuse_unwritten(target);
    return;
  }
  if (!is_folder(target)) refuse(target, "is neither a file nor a folder");
  if (fs::is_empty(target)) return;
  if (fs::exists(target / "latest_universal")) return require_universal(target);
  if (fs::exists(target / checkpoint::kManifestName)) return require_imported(target);
  require_hugging_face(target);
}

}  // namespace tessera::cli
