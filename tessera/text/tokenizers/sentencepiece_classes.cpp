// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/sentencepiece_classes.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/text/small_file.h"
#include "tessera/text/tokenizers/albert.h"
#include "tessera/text/tokenizers/characters.h"
#include "tessera/text/tokenizers/cpm.h"
#include "tessera/text/tokenizers/sentencepiece.h"

namespace tessera::text::tokenizers {
namespace {

using Strings = std::vector<std::string>;

// The languages of mBART in the order of their ids, and those that mBART-50 adds.
constexpr std::array<const char*, 52> kLanguages = {
    "ar_AR", "cs_CZ", "de_DE", "en_XX", "es_XX", "et_EE", "fi_FI", "fr_XX", "gu_IN",
    "hi_IN", "it_IT", "ja_XX", "kk_KZ", "ko_KR", "lt_LT", "lv_LV", "my_MM", "ne_NP",
    "nl_XX", "ro_RO", "ru_RU", "si_LK", "tr_TR", "vi_VN", "zh_CN", "af_ZA", "az_AZ",
    "bn_IN", "fa_IR", "he_IL", "hr_HR", "id_ID", "ka_GE", "km_KH", "mk_MK", "ml_IN",
    "mn_MN", "mr_IN", "pl_PL", "ps_AF", "pt_XX", "sv_SE", "sw_KE", "ta_IN", "te_IN",
    "th_TH", "tl_XX", "uk_UA", "ur_PK", "xh_ZA", "gl_ES", "sl_SI"};
constexpr std::size_t kLanguagesOfMbart = 25;

/// The tokens around a text and around a pair: "$A" and "$B" stand for the texts, other entries for
/// special tokens.
struct Surroundings {
  Strings single, pair;
  bool typed = false;  ///< the second text and the tokens after it have type 1
};

/// A tokenizer under construction.
struct Draft {
  const SentencePieceModel& model;
  const Settings& settings;
  const std::string& where;
  std::vector<std::int32_t> ids;                           ///< ids of the pieces
  std::vector<std::pair<std::string, std::int64_t>> more;  ///< tokens that are not pieces
  std::vector<std::optional<std::string>> special;
  Strings with_space_before, with_space_behind;  ///< tokens that absorb white space on that side
  Surroundings surroundings;
  DummyPrefix dummy = DummyPrefix::AsTrained;
  NormalizerPtr before;  ///< runs before sentencepiece's own normalizer

  [[nodiscard]] std::string token(const char* role, const char* otherwise) {
    const auto found = settings.token(role, otherwise);
    special.push_back(found);
    return found.value_or("");
  }
  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(ids.size()); }
};

std::int32_t checked(std::int64_t id, const std::string& where) {
  if (id > Vocabulary::kLargestId) refuse_part(where, "has too many pieces");
  return static_cast<std::int32_t>(id);
}

/// `<s> A` or `A </s>`, by the settings, and the same for a second text.
void begin_and_end(Draft& draft, const std::string& begin, const std::string& end) {
  Strings one;
  const auto add = [&](const char* key, bool otherwise, const std::string& token) {
    if (draft.settings.flag(key).value_or(otherwise) && !token.empty()) one.push_back(token);
  };
  add("add_bos_token", true, begin);
  one.emplace_back("$A");
  add("add_eos_token", false, end);
  draft.surroundings = {one, one, true};
  one[static_cast<std::size_t>(std::find(one.begin(), one.end(), "$A") - one.begin())] = "$B";
  draft.surroundings.pair.insert(draft.surroundings.pair.end(), one.begin(), one.end());
}

/// Applies `legacy` false and add_prefix_space.
void choose_dummy(Draft& draft) {
  if (draft.settings.flag("legacy").value_or(true)) return;
  const bool wanted = draft.settings.flag("add_prefix_space").value_or(true);
  draft.dummy = wanted ? DummyPrefix::First : DummyPrefix::Never;
}

void llama(Draft& draft) {
  choose_dummy(draft);
  const std::string unknown = draft.token("unk_token", "<unk>"),
                    begin = draft.token("bos_token", "<s>"), end = draft.token("eos_token", "</s>");
  (void)draft.token("pad_token", "");
  begin_and_end(draft, begin, end);
}

void gemma(Draft& draft) {
  const std::string unknown = draft.token("unk_token", "<unk>"),
                    begin = draft.token("bos_token", "<bos>"),
                    end = draft.token("eos_token", "<eos>");
  (void)draft.token("pad_token", "<pad>");
  begin_and_end(draft, begin, end);
}

// The sentinels <extra_id_0>, <extra_id_1>, ... have the ids after the pieces, in descending order.
void t5(Draft& draft) {
  choose_dummy(draft);
  const std::string unknown = draft.token("unk_token", "<unk>"),
                    end = draft.token("eos_token", "</s>");
  draft.with_space_behind = {unknown, end, draft.token("pad_token", "<pad>")};
  const Strings additional = draft.settings.texts("additional_special_tokens");
  const auto listed = std::count_if(additional.begin(), additional.end(), [](const auto& token) {
    return token.find("extra_id") != std::string::npos;
  });
  constexpr std::int64_t kUsual = 100, kMost = 100'000;
  const std::int64_t count =
      draft.settings.integer("extra_ids").value_or(additional.empty() ? kUsual : listed);
  if (count < 0 || count > kMost)
    refuse_part(draft.where, fmt::format("has {} extra_ids by its configuration", count));
  for (std::int64_t i = 0; i < count; ++i) {
    draft.more.emplace_back(fmt::format("<extra_id_{}>", i), draft.size() + count - 1 - i);
    draft.special.emplace_back(draft.more.back().first);
    draft.with_space_before.push_back(draft.more.back().first);
    draft.with_space_behind.push_back(draft.more.back().first);
  }
  draft.surroundings = {{"$A", end}, {"$A", end, "$B", end}, false};
}

/// fairseq's ids: four special tokens come first; the pieces, whose first one is the unknown,
/// follow with their ids shifted by `offset`.
void fairseq_ids(Draft& draft, const Strings& first, std::int64_t offset) {
  std::map<std::string, std::int64_t> own;
  for (std::size_t id = 0; id < first.size(); ++id)
    own.emplace(first[id], static_cast<std::int64_t>(id));
  const std::int64_t unknown = 3;
  for (std::size_t i = 0; i < draft.ids.size(); ++i) {
    const auto found = own.find(draft.model.pieces[i].text);
    const std::int64_t id = static_cast<std::int32_t>(i) == draft.model.unknown ? unknown
                            : found != own.end()                                ? found->second
                                                 : static_cast<std::int64_t>(i) + offset;
    draft.ids[i] = checked(id, draft.where);
  }
  for (const auto& [text, id] : own) {
    if (id != unknown) draft.more.emplace_back(text, id);
  }
}

/// The special roles of these classes; the mask token absorbs the space before it.
struct FairseqRoles {
  std::string begin, end;
};
FairseqRoles fairseq_roles(Draft& draft, std::int64_t mask_id) {
  FairseqRoles out;
  out.begin = draft.token("cls_token", "<s>");
  out.end = draft.token("sep_token", "</s>");
  for (const auto& [role, usual] : {std::pair("bos_token", "<s>"),
                                    std::pair("eos_token", "</s>"),
                                    std::pair("unk_token", "<unk>"),
                                    std::pair("pad_token", "<pad>")})
    (void)draft.token(role, usual);
  const std::string mask = draft.token("mask_token", "<mask>");
  draft.with_space_before.push_back(mask);
  draft.more.emplace_back("<mask>", mask_id);
  return out;
}

void xlm_roberta(Draft& draft) {
  const std::int64_t mask = draft.size() + 1;
  fairseq_ids(draft, {"<s>", "<pad>", "</s>", "<unk>"}, 1);
  const auto [begin, end] = fairseq_roles(draft, mask);
  draft.surroundings = {{begin, "$A", end}, {begin, "$A", end, end, "$B", end}, false};
}

void camembert(Draft& draft) {
  const std::int64_t mask = draft.size() + 4;
  fairseq_ids(draft, {"<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>"}, 4);
  const auto [begin, end] = fairseq_roles(draft, mask);
  draft.surroundings = {{begin, "$A", end}, {begin, "$A", end, end, "$B", end}, false};
}

std::string language_of(Draft& draft, std::size_t count) {
  const std::int64_t first = draft.size() + 1;
  for (std::size_t i = 0; i < count; ++i) {
    draft.more.emplace_back(kLanguages[i], first + static_cast<std::int64_t>(i));
    draft.special.emplace_back(kLanguages[i]);
  }
  const std::string source = draft.settings.text("src_lang").value_or("en_XX");
  const auto* const end = kLanguages.begin() + count;
  if (std::find(kLanguages.begin(), end, source) == end)
    refuse_part(draft.where, fmt::format("knows no language \"{}\", its src_lang", source));
  return source;
}

void mbart(Draft& draft) {
  const std::string language = language_of(draft, kLanguagesOfMbart);
  const std::int64_t mask = draft.size() + 1 + static_cast<std::int64_t>(kLanguagesOfMbart);
  fairseq_ids(draft, {"<s>", "<pad>", "</s>", "<unk>"}, 1);
  const std::string end = fairseq_roles(draft, mask).end;
  draft.surroundings = {{"$A", end, language}, {"$A", "$B", end, language}, false};
}

void mbart_50(Draft& draft) {
  const std::string language = language_of(draft, kLanguages.size());
  const std::int64_t mask = draft.size() + 1 + static_cast<std::int64_t>(kLanguages.size());
  fairseq_ids(draft, {"<s>", "<pad>", "</s>", "<unk>"}, 1);
  const std::string end = fairseq_roles(draft, mask).end;
  draft.surroundings = {{language, "$A", end}, {language, "$A", "$B", end}, false};
}

void albert(Draft& draft) {
  const std::string begin = draft.token("cls_token", "[CLS]"),
                    end = draft.token("sep_token", "[SEP]");
  for (const auto& [role, usual] : {std::pair("bos_token", "[CLS]"),
                                    std::pair("eos_token", "[SEP]"),
                                    std::pair("unk_token", "<unk>"),
                                    std::pair("pad_token", "<pad>")})
    (void)draft.token(role, usual);
  draft.with_space_before.push_back(draft.token("mask_token", "[MASK]"));
  draft.surroundings = {{begin, "$A", end}, {begin, "$A", end, "$B", end}, true};
  draft.before = albert_normalizer(draft.settings);
}

void cpm(Draft& draft) {
  const std::string separator = draft.token("sep_token", "<sep>"),
                    last = draft.token("cls_token", "<cls>");
  for (const auto& [role, usual] : {std::pair("bos_token", "<s>"),
                                    std::pair("eos_token", "</s>"),
                                    std::pair("unk_token", "<unk>"),
                                    std::pair("pad_token", "<pad>")})
    (void)draft.token(role, usual);
  draft.with_space_before.push_back(draft.token("mask_token", "<mask>"));
  if (draft.settings.texts("additional_special_tokens").empty())
    draft.special.insert(draft.special.end(), {"<eop>", "<eod>"});
  draft.surroundings = {{"$A", separator, last}, {"$A", separator, "$B", separator, last}, true};
  draft.before = albert_normalizer(draft.settings, /*lower=*/false);
}

/// Without a class: the model's own tokens for beginning and end, and nothing around texts.
void plain(Draft& draft) {
  for (const auto& piece : draft.model.pieces) {
    if (piece.type == SentencePieceModel::Type::Control ||
        piece.type == SentencePieceModel::Type::Unknown)
      draft.special.emplace_back(piece.text);
  }
}

struct Class {
  std::string_view name;
  void (*apply)(Draft& draft);
};
constexpr Class kClasses[] = {{"LlamaTokenizer", llama},
                              {"CodeLlamaTokenizer", llama},
                              {"GemmaTokenizer", gemma},
                              {"T5Tokenizer", t5},
                              {"MT5Tokenizer", t5},
                              {"XLMRobertaTokenizer", xlm_roberta},
                              {"CamembertTokenizer", camembert},
                              {"MBartTokenizer", mbart},
                              {"MBart50Tokenizer", mbart_50},
                              {"AlbertTokenizer", albert},
                              {"CpmTokenizer", cpm}};
/// The class for each model_type, for folders whose tokenizer_config.json names none.
constexpr std::pair<std::string_view, std::string_view> kModelTypes[] = {
    {"llama", "LlamaTokenizer"},
    {"mistral", "LlamaTokenizer"},
    {"mixtral", "LlamaTokenizer"},
    {"gemma", "GemmaTokenizer"},
    {"gemma2", "GemmaTokenizer"},
    {"gemma3_text", "GemmaTokenizer"},
    {"t5", "T5Tokenizer"},
    {"mt5", "T5Tokenizer"},
    {"umt5", "T5Tokenizer"},
    {"switch_transformers", "T5Tokenizer"},
    {"xlm-roberta", "XLMRobertaTokenizer"},
    {"camembert", "CamembertTokenizer"},
    {"mbart", "MBartTokenizer"},
    {"albert", "AlbertTokenizer"}};

const Class& class_of(const Settings& settings, const std::string& where) {
  static constexpr Class kPlain{"", plain};
  std::string name = settings.tokenizer_class();
  const bool given = !name.empty();
  if (!given) {
    for (const auto& [type, of_type] : kModelTypes) {
      if (settings.model_type() == type) name = of_type;
    }
  }
  if (name.empty()) return kPlain;
  const auto* const found = std::find_if(
      std::begin(kClasses), std::end(kClasses), [&](const Class& c) { return c.name == name; });
  if (found == std::end(kClasses))
    unsupported_part(where, fmt::format("belongs to the tokenizer_class \"{}\"", name));
  return *found;
}

bool holds(const Strings& list, const std::string& text) {
  return std::find(list.begin(), list.end(), text) != list.end();
}

std::vector<AddedToken> added_tokens(const Draft& draft, const Vocabulary& vocabulary) {
  std::vector<AddedToken> out = draft.settings.added_tokens(vocabulary, draft.special);
  for (AddedToken& token : out) {
    token.lstrip = token.lstrip || holds(draft.with_space_before, token.content);
    token.rstrip = token.rstrip || holds(draft.with_space_behind, token.content);
    // The library searches for added tokens before sentencepiece sees the text.
    token.normalized = false;
  }
  return out;
}

PostProcessorPtr template_of(const Surroundings& surroundings,
                             const std::vector<AddedToken>& added,
                             const Vocabulary& vocabulary,
                             const std::string& where) {
  if (surroundings.single.empty()) return nullptr;
  json specials = json::object();
  const auto list = [&](const Strings& names) {
    json out = json::array();
    std::int32_t type = 0;
    for (const std::string& name : names) {
      if (name == "$A" || name == "$B") {
        if (name == "$B" && surroundings.typed) type = 1;
        out.push_back({{"Sequence", {{"id", name.substr(1)}, {"type_id", type}}}});
        continue;
      }
      const auto known = std::find_if(
          added.begin(), added.end(), [&](const AddedToken& t) { return t.content == name; });
      const auto id = known != added.end() ? std::optional(known->id) : vocabulary.find(name);
      if (!id) refuse_part(where, fmt::format("has no token \"{}\"", name));
      specials[name] = {
          {"id", name}, {"ids", {static_cast<std::uint32_t>(*id)}}, {"tokens", {name}}};
      out.push_back({{"SpecialToken", {{"id", name}, {"type_id", type}}}});
    }
    return out;
  };
  json processor = {{"type", "TemplateProcessing"}};
  processor["single"] = list(surroundings.single);
  processor["pair"] = list(surroundings.pair);
  processor["special_tokens"] = specials;
  return read_post_processor(Part(processor, where));
}

}  // namespace

PipelineParts read_sentencepiece_model(const std::filesystem::path& path,
                                       const Settings& settings) {
  const std::string where = path.string();
  const SentencePieceModel model = read_sentencepiece(read_small_file(path), where);
  if (settings.samples()) unsupported_part(where, "is to be sampled, with which ids are random");
  Draft draft{model, settings, where};
  for (std::size_t i = 0; i < model.pieces.size(); ++i)
    draft.ids.push_back(checked(static_cast<std::int64_t>(i), where));
  const Class& rules = class_of(settings, where);
  rules.apply(draft);

  PipelineParts out;
  out.normalizer = sentencepiece_normalizer(model, draft.dummy, where);
  if (draft.before) out.normalizer = normalize_in_sequence({draft.before, out.normalizer});
  out.pre_tokenizer = sentencepiece_split(model);
  out.model = sentencepiece_model(model, draft.ids, where);
  if (rules.apply == albert || rules.apply == cpm)
    out.model = albert_model(out.model, sentencepiece_normalizer(model, draft.dummy, where));
  // The tokens that have ids by the rules, whether settings list them or not.
  Vocabulary all = out.model->vocabulary();
  for (const auto& [text, id] : draft.more)
    all.add(text, id, where);
  out.added_tokens = added_tokens(draft, all);
  for (const auto& [text, id] : draft.more) {
    const auto same = [wanted = id](const AddedToken& token) { return token.id == wanted; };
    if (std::none_of(out.added_tokens.begin(), out.added_tokens.end(), same)) {
      AddedToken token;
      token.id = static_cast<std::int32_t>(id);
      token.content = text;
      token.normalized = false;
      out.added_tokens.push_back(std::move(token));
    }
  }
  out.post_processor = template_of(draft.surroundings, out.added_tokens, all, where);
  if (rules.apply == cpm)
    add_cpm(out);  // decodes the pieces as they are, also the unknown one
  else
    out.decoder = sentencepiece_decoder(model, out.added_tokens);
  return out;
}

}  // namespace tessera::text::tokenizers
