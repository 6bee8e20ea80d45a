// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizer.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <system_error>

#include <dlfcn.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/text/bpe.h"
#include "tessera/text/file_tokenizer.h"
#include "tessera/text/gpt2_tokenizer.h"
#include "tessera/text/small_file.h"
#include "tessera/text/tokenizers/aligned_text.h"
#include "tessera/text/tokenizers/tokenizer_file.h"

namespace tessera::text {
namespace {

namespace fs = std::filesystem;

// Hugging Face's names of a tokenizer's files.
constexpr const char *kVocab = "vocab.json", *kMerges = "merges.txt", *kWhole = "tokenizer.json";

/// The text of id 0: the byte itself.
constexpr std::string_view kByteZero("\0", 1);

/// Ids 0..255 are the bytes. End of text is byte 0, which no text file contains.
class ByteTokenizer final : public Tokenizer {
 public:
  ByteTokenizer() {
    for (std::size_t b = 0; b < bytes_.size(); ++b)
      bytes_[b] = static_cast<char>(b);
  }
  [[nodiscard]] std::string name() const override { return "byte"; }
  [[nodiscard]] std::int64_t size() const override { return 256; }
  [[nodiscard]] std::int32_t end_of_text() const override { return 0; }
  void encode(std::string_view text,
              std::vector<std::int32_t>& out,
              bool /*special*/) const override {
    out.reserve(out.size() + text.size());
    for (const char c : text)
      out.push_back(static_cast<unsigned char>(c));
  }
  [[nodiscard]] std::string_view bytes_of(std::int32_t id) const override {
    if (id < 0 || id >= 256) return {};
    return {bytes_.data() + id, 1};
  }
  [[nodiscard]] std::string fingerprint() const override { return "byte"; }
  // Between any two characters, but not between the two bytes of a line end.
  [[nodiscard]] std::size_t cut(std::string_view text, std::size_t from) const override {
    std::size_t at = std::min(from, text.size());
    while (at < text.size() &&
           ((static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U || text[at] == '\n'))
      ++at;
    return at;
  }

 private:
  std::array<char, 256> bytes_;
};

// Tokens that a folder adds to its vocabulary would change the ids on which its model was trained.
void refuse_added_tokens(const fs::path& folder) {
  const fs::path path = folder / "added_tokens.json";
  if (!fs::exists(path)) return;
  const auto added = nlohmann::json::parse(read_small_file(path), nullptr, false);
  TESSERA_REQUIRE(added.is_object(), Format, path.string() + ": is not a JSON object", "");
  for (const auto& [token, id] : added.items()) {
    TESSERA_REQUIRE(
        token == "<|endoftext|>",
        Unsupported,
        fmt::format(
            "{}: adds the token \"{}\"; only GPT-2's own vocabulary is read", path.string(), token),
        "use a folder without added tokens");
  }
}

// Compares only the parts that determine the ids, whatever else a newer version writes.
bool is_byte_tokenizer(const fs::path& path) {
  const auto theirs = nlohmann::json::parse(read_small_file(path), nullptr, false);
  const auto ours = nlohmann::json::parse(byte_tokenizer_json());
  if (!theirs.is_object() || !theirs.contains("model") || !theirs["model"].is_object())
    return false;
  const auto part = [](const nlohmann::json& object, const char* key) {
    return object.contains(key) ? object[key] : nlohmann::json();
  };
  const auto vocabulary = part(theirs["model"], "vocab");
  const auto added = part(theirs, "added_tokens");
  // Files of earlier versions wrote byte 0 as other bytes, and named no token that ends a text.
  nlohmann::json before = ours["model"]["vocab"];
  before.erase(std::string(kByteZero));
  before[tokenizers::byte_character(0)] = 0;
  const bool alike = vocabulary == ours["model"]["vocab"] && added == ours["added_tokens"];
  const bool alike_before = vocabulary == before && added.empty();
  return (alike || alike_before) && part(theirs["model"], "merges").empty() &&
         part(theirs, "normalizer").is_null() &&
         part(theirs, "pre_tokenizer") == ours["pre_tokenizer"];
}

fs::path folder_of_program() {
  std::error_code ignored;
  return fs::read_symlink("/proc/self/exe", ignored).parent_path();
}

fs::path folder_of_library() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&share_dir), &info) == 0 || info.dli_fname == nullptr)
    return {};
  std::error_code ignored;
  return fs::weakly_canonical(info.dli_fname, ignored).parent_path();
}

TokenizerPtr make_file(const TokenizerOptions& options) {
  TESSERA_REQUIRE(!options.vocab.empty() && options.merges.empty(),
                  Config,
                  "tokenizer.type \"file\" takes one file, as tokenizer.vocab",
                  fmt::format("set tokenizer.vocab to one of {}, and remove tokenizer.merges",
                              tokenizers::names_of_tokenizer_files()));
  return std::make_shared<FileTokenizer>(options.vocab);
}

/// True if `check` passes; false if it throws because something differs from GPT-2.
template <class Check>
bool is_gpt2(const Check& check) {
  try {
    check();
    return true;
  } catch (const Error& error) {
    if (error.kind() != Error::Kind::Unsupported) throw;
    return false;
  }
}

TokenizerPtr make_gpt2(const TokenizerOptions& options) {
  const std::string &vocab = options.vocab, &merges = options.merges;
  TESSERA_REQUIRE(merges.empty() || !vocab.empty(),
                  Config,
                  "tokenizer.merges is given without tokenizer.vocab",
                  "give both files of one tokenizer, or neither for the shipped ones");
  if (vocab.empty()) {
    const fs::path shipped = share_dir() / "gpt2";
    return std::make_shared<Gpt2Tokenizer>(
        read_bpe((shipped / kVocab).string(), (shipped / kMerges).string()));
  }
  if (!merges.empty()) return std::make_shared<Gpt2Tokenizer>(read_bpe(vocab, merges));
  TESSERA_REQUIRE(text::lower(vocab).ends_with(kWhole),
                  Config,
                  "tokenizer.vocab is given without tokenizer.merges",
                  "give both files of one tokenizer, its tokenizer.json as tokenizer.vocab, or "
                  "neither for the shipped ones");
  return std::make_shared<Gpt2Tokenizer>(read_bpe_json(vocab));
}

}  // namespace

void TokenizerOptions::describe(config::Fields& fields) {
  fields.field("type",
               type,
               {.text = "Tokenizer: byte (256 ids, end of text is 0), gpt2 (byte-level BPE, 50257 "
                        "ids, end of text is the last), or file (a tokenizer.json or a vocab.txt).",
                .choices = {"byte", "gpt2", "file"}});
  fields.field(
      "vocab",
      vocab,
      {.text = "vocab.json of a gpt2 tokenizer (requires merges), or its tokenizer.json alone; the "
               "file of type file.",
       .default_text = "the shipped GPT-2 vocabulary"});
  fields.field("merges",
               merges,
               {.text = "merges.txt of a gpt2 tokenizer (requires vocab).",
                .default_text = "the shipped GPT-2 merges"});
}

std::string Tokenizer::decode(const std::vector<std::int32_t>& ids) const {
  std::string out;
  for (const std::int32_t id : ids)
    out += bytes_of(id);
  return out;
}

JoinedIds Tokenizer::join(const std::vector<std::int32_t>& first,
                          const std::vector<std::int32_t>& second) const {
  JoinedIds out{first, std::vector<std::int32_t>(first.size(), 0)};
  out.ids.insert(out.ids.end(), second.begin(), second.end());
  out.types.resize(out.ids.size(), 1);
  return out;
}

// For a tokenizer over bytes, the bytes of its ids are those of the text.
std::vector<std::pair<std::size_t, std::size_t>> Tokenizer::encode_spans(
    std::string_view text, std::vector<std::int32_t>& out) const {
  std::vector<std::pair<std::size_t, std::size_t>> spans;
  const std::size_t before = out.size();
  encode(text, out);
  std::size_t at = 0;
  for (std::size_t i = before; i < out.size(); ++i) {
    const std::size_t size = bytes_of(out[i]).size();
    spans.emplace_back(at, at + size);
    at += size;
  }
  TESSERA_ASSERT(at == text.size());
  return spans;
}

std::vector<std::int32_t> Tokenizer::encode_prompt(std::string_view text) const {
  std::vector<std::int32_t> ids, out = beginning();
  encode(text, ids);
  if (ids.size() >= out.size() && std::equal(out.begin(), out.end(), ids.begin())) return ids;
  out.insert(out.end(), ids.begin(), ids.end());
  return out;
}

namespace {

/// Returns the type and the files as they are now, with those next to the vocabulary that a
/// tokenizer reads too.
std::string key_of(const TokenizerOptions& options) {
  std::string out = text::lower(options.type);
  const auto add = [&out](const fs::path& file) {
    std::error_code unknown;
    const auto size = fs::file_size(file, unknown);
    const auto written = fs::last_write_time(file, unknown).time_since_epoch().count();
    out += fmt::format("\n{}\n{} {}", file.string(), size, written);
  };
  add(options.vocab);
  add(options.merges);
  if (options.vocab.empty()) return out;
  for (const char* const name : {"tokenizer_config.json",
                                 "special_tokens_map.json",
                                 "added_tokens.json",
                                 "generation_config.json",
                                 "config.json"})
    add(fs::path(options.vocab).parent_path() / name);
  return out;
}

TokenizerPtr make_new(const TokenizerOptions& options);

}  // namespace

TokenizerPtr make_tokenizer(const TokenizerOptions& options) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<const Tokenizer>> made;
  const std::string key = key_of(options);
  const std::scoped_lock lock(mutex);
  if (TokenizerPtr known = made[key].lock()) return known;
  std::erase_if(made, [](const auto& one) { return one.second.expired(); });
  TokenizerPtr out = make_new(options);
  made[key] = out;
  return out;
}

namespace {

TokenizerPtr make_new(const TokenizerOptions& options) {
  const std::string type = text::lower(options.type);
  if (type == "gpt2") return make_gpt2(options);
  if (type == "file") return make_file(options);
  const std::array<std::string, 3> types = {"byte", "gpt2", "file"};
  TESSERA_REQUIRE(type == "byte",
                  Config,
                  fmt::format("unknown tokenizer.type \"{}\"", options.type),
                  text::suggestion(options.type, types));
  TESSERA_REQUIRE(options.vocab.empty() && options.merges.empty(),
                  Config,
                  "tokenizer.vocab and tokenizer.merges have no effect with the byte tokenizer",
                  "set tokenizer.type to \"gpt2\", or remove them");
  return std::make_shared<ByteTokenizer>();
}

}  // namespace

std::string byte_tokenizer_json() {
  const nlohmann::json bytes = {{"type", "ByteLevel"},
                                {"add_prefix_space", false},
                                {"trim_offsets", true},
                                {"use_regex", false}};
  nlohmann::json vocabulary = nlohmann::json::object();
  for (int byte = 0; byte < 256; ++byte)
    vocabulary[tokenizers::byte_character(static_cast<unsigned char>(byte))] = byte;
  // Byte 0 ends a text. A special token is found in texts by its content, so it must be the byte,
  // and not the letter that stands for it.
  vocabulary.erase(tokenizers::byte_character(0));
  vocabulary[std::string(kByteZero)] = 0;
  const nlohmann::json end = {{"id", 0},
                              {"content", kByteZero},
                              {"single_word", false},
                              {"lstrip", false},
                              {"rstrip", false},
                              {"normalized", false},
                              {"special", true}};
  const nlohmann::json out = {{"version", "1.0"},
                              {"truncation", nullptr},
                              {"padding", nullptr},
                              {"added_tokens", nlohmann::json::array({end})},
                              {"normalizer", nullptr},
                              {"pre_tokenizer", bytes},
                              {"post_processor", nullptr},
                              {"decoder", bytes},
                              {"model",
                               {{"type", "BPE"},
                                {"dropout", nullptr},
                                {"unk_token", nullptr},
                                {"continuing_subword_prefix", nullptr},
                                {"end_of_word_suffix", nullptr},
                                {"fuse_unk", false},
                                {"byte_fallback", false},
                                {"ignore_merges", false},
                                {"vocab", vocabulary},
                                {"merges", nlohmann::json::array()}}}};
  return out.dump(2) + "\n";
}

std::optional<TokenizerOptions> find_bpe(const fs::path& folder) {
  const fs::path vocab = folder / kVocab, merges = folder / kMerges, whole = folder / kWhole;
  if (fs::exists(vocab) && fs::exists(merges)) return {{"gpt2", vocab.string(), merges.string()}};
  if (fs::exists(whole)) return {{"gpt2", whole.string(), ""}};
  return std::nullopt;
}

TokenizerOptions tokenizer_options_of(const fs::path& folder) {
  const auto found = find_bpe(folder);
  const fs::path whole = folder / kWhole;
  std::error_code ignored;  // a symbolic link to itself is not a file
  if (found && !fs::exists(whole, ignored)) {
    refuse_added_tokens(folder);
    return *found;
  }
  const auto file = tokenizers::find_tokenizer_file(folder);
  TESSERA_REQUIRE(
      file.has_value(),
      Format,
      fmt::format("{} has no tokenizer: neither vocab.json with merges.txt nor {}",
                  folder.string(),
                  tokenizers::names_of_tokenizer_files()),
      "copy the tokenizer's files next to the weights, or name them with tokenizer.vocab and "
      "tokenizer.merges");
  const TokenizerOptions any{"file", file->string(), ""};
  if (!found) return any;
  if (found->merges.empty()) {
    if (is_byte_tokenizer(whole)) return {};
    return is_gpt2([&] { (void)read_bpe_json(whole.string()); }) ? *found : any;
  }
  const auto check = [&] {
    refuse_added_tokens(folder);
    require_gpt2_parts_of(whole.string());
  };
  return is_gpt2(check) ? *found : any;
}

TokenizerPtr tokenizer_from_folder(const fs::path& folder) {
  return make_tokenizer(tokenizer_options_of(folder));
}

fs::path share_dir() {
  std::vector<fs::path> places;
  for (const fs::path& folder : {folder_of_program(), folder_of_library()}) {
    if (folder.empty()) continue;
    places.push_back(folder / "../share/tessera");     // prefix/bin, prefix/lib
    places.push_back(folder / "../../share/tessera");  // prefix/lib/<architecture>
    places.push_back(folder / "../../../share");       // <source>/build/<preset>/bin
  }
#ifdef TESSERA_SOURCE_SHARE
  places.emplace_back(TESSERA_SOURCE_SHARE);
#endif
  std::vector<std::string> tried;
  for (const fs::path& place : places) {
    std::error_code ignored;
    if (fs::exists(place / "gpt2" / "vocab.json", ignored)) return place.lexically_normal();
    const std::string name = place.lexically_normal().string();
    if (std::find(tried.begin(), tried.end(), name) == tried.end()) tried.push_back(name);
  }
  throw Error(Error::Kind::Environment,
              fmt::format("the files that ship with tessera (gpt2/vocab.json) are in none of: {}",
                          text::join(tried, ", ")),
              "install with cmake --install, run the program from the clone, or give "
              "tokenizer.vocab and tokenizer.merges");
}

}  // namespace tessera::text
