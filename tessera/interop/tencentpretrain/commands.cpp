// SPDX-License-Identifier: Apache-2.0
// TencentPretrain's scripts, none of which is read: their models are a file of weights beside a
// configuration. Each is refused by its name, with the command to use.
#include "tessera/interop/command_meaning.h"

namespace tessera::interop {
namespace {

const bool kPrograms = add_programs({
    {.title = "TencentPretrain's preprocess.py",
     .names = {"preprocess.py"},
     .folders = {"TencentPretrain", "tencentpretrain"},
     .marks = {"corpus_path", "data_processor"},
     .refused = "data is tokenized when a training starts, and cached",
     .instead = "tessera init --task masked_lm --data corpus.txt > my.json; tessera train my.json"},
    {.title = "TencentPretrain's pretrain.py",
     .names = {"pretrain.py"},
     .folders = {"TencentPretrain", "tencentpretrain"},
     .marks = {"data_processor", "config_path", "output_model_path"},
     .refused = "its data sets and models are files of its own",
     .instead = "tessera init --task masked_lm --data corpus.txt > my.json, with model.family "
                "compose for its kinds of models"},
    {.title = "TencentPretrain's fine-tuning",
     .names = {"run_classifier.py",
               "run_classifier_deepspeed.py",
               "run_classifier_cv.py",
               "run_classifier_grid.py",
               "run_classifier_mt.py",
               "run_text2text.py",
               "run_cmrc.py",
               "run_c3.py",
               "run_chid.py",
               "run_dbqa.py",
               "run_simcse.py"},
     .folders = {"finetune"},
     .marks = {"pretrained_model_path", "vocab_path", "train_path"},
     .refused = "its models are files of its own",
     .instead = "tessera init --task classify --from FOLDER --data train.tsv > my.json; tessera "
                "train my.json"},
    {.title = "TencentPretrain's inference",
     .names = {"run_classifier_infer.py",
               "run_classifier_deepspeed_infer.py",
               "run_ner_infer.py",
               "run_text2text_infer.py",
               "run_cmrc_infer.py"},
     .refused = "its models are files of its own",
     .instead = "tessera predict MODEL test.tsv --out prediction.tsv"},
    {.title = "TencentPretrain's generation",
     .names = {"generate_lm.py",
               "generate_lm_deepspeed.py",
               "generate_seq2seq.py",
               "generate_seq2seq_deepspeed.py"},
     .refused = "its models are files of its own",
     .instead = "tessera generate MODEL --prompt TEXT"},
});

}  // namespace
}  // namespace tessera::interop
