#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow multiprocess
# timeout: 300
# Commands of other programs behind tessera's name: they train, and the configuration that they mean gives the same bits.
# usage: foreign_program_test.sh PROGRAM
source "$(dirname "${BASH_SOURCE[0]}")/../support/claims.sh"
tessera=$(realpath "${1:?usage: foreign_program_test.sh PROGRAM}")
export TESSERA_CACHE=${TMPDIR:-/tmp}/tessera-test-cache-$UID OMP_WAIT_POLICY=passive
mkdir -p "$TESSERA_CACHE"

losses() { sed -n 's/.*"step":\([0-9]*\),.*"loss":\([^,}]*\).*/\1 \2/p' "$1/metrics.jsonl"; }

# A small run of Megatron-LM's script on two ranks.
gpt() {
  head -c 20000 "$OLDPWD/examples/data/shakespeare.txt" >t.txt
  "$tessera" tokenize t.txt --out p >/dev/null 2>&1
  command=(torchrun --nproc_per_node 2 pretrain_gpt.py --num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 16
    --max-position-embeddings 16 --micro-batch-size 2 --global-batch-size 8 --train-iters 4 --lr 1e-3 --lr-decay-style cosine
    --lr-warmup-iters 2 --data-path p --split 90,10,0 --tokenizer-type NullTokenizer --vocab-size 256 --log-interval 1
    --hidden-dropout 0 --attention-dropout 0 --no-rope-fusion)
}

trains_to_the_bits_of_its_configuration() {
  cd "$box" || exit 1
  gpt
  expect "the command trains" "$tessera" "${command[@]}" --save one --set run.threads_per_rank=1
  "$tessera" config convert -- "${command[@]}" --save two >my.json 2>notes
  expect "each key has its flag" says "// --hidden-size" my.json
  expect "flags without an effect are named" says "no effect here: --no-rope-fusion" notes
  expect "the configuration trains" "$tessera" train my.json -n 2 --set run.threads_per_rank=1
  expect "four losses" test "$(losses one | wc -l)" -ge 4
  expect "the same losses" test "$(losses one)" = "$(losses two)"
  expect "the same tensors" "$tessera" compare one two
}

a_dry_run_says_what_is_meant() {
  cd "$box" || exit 1
  gpt
  expect "it is accepted" "$tessera" "${command[@]}" --save one --dry-run >out
  expect "the program" says "Megatron-LM's pretrain_gpt.py" out
  expect "a key with its flag" grep -q 'model.hidden_size 32 .*--hidden-size' out
  expect "a default" grep -q 'trainer.seed 1234 .*default of' out
  expect "nothing is written" test ! -e one
}

# A small Llama with its tokenizer, as a folder of Hugging Face.
model() {
  cat >tiny.json <<EOF
{"model": {"family": "llama", "num_layers": 1, "hidden_size": 16, "num_heads": 2, "max_positions": 64},
 "data": {"train": "t.txt", "sequence_length": 16}, "train_batch_size": 4, "trainer": {"max_steps": 1},
 "run": {"dir": "tiny", "threads_per_rank": 1}}
EOF
  expect "a model to begin with" "$tessera" train tiny.json -q
  expect "its folder" "$tessera" convert tiny m
}

a_script_of_hugging_face_trains() {
  cd "$box" || exit 1
  head -c 3000 "$OLDPWD/examples/data/shakespeare.txt" >t.txt
  model
  expect "it trains" "$tessera" python run_clm.py --model_name_or_path m --train_file t.txt --do_train --do_eval \
    --output_dir out --per_device_train_batch_size 2 --block_size 16 --max_steps 4 --eval_strategy steps --eval_steps 0.5 \
    --save_strategy no --warmup_ratio 0.5 --set run.threads_per_rank=1
  expect "evaluations after half of the steps and at the end" \
    test "$(grep -c '"eval_loss"' out/metrics.jsonl)" = 2
}

# TencentPretrain's scripts one after the other, with a model of its keys.
tencentpretrain() {
  cd "$box" || exit 1
  mkdir -p models/bert
  cat >models/bert/base_config.json <<EOF
{"emb_size": 16, "feedforward_size": 32, "hidden_size": 16, "hidden_act": "gelu", "heads_num": 2, "layers_num": 1,
 "max_seq_length": 32, "dropout": 0.1, "data_processor": "bert", "embedding": ["word", "pos", "seg"],
 "encoder": "transformer", "mask": "fully_visible", "target": ["mlm", "sp"]}
EOF
  printf '%s\n' '[PAD]' '[UNK]' '[CLS]' '[SEP]' '[MASK]' good bad film the a is was >models/vocab.txt
  for i in 1 2 3 4 5 6 7 8; do printf 'the film is good\na film was bad\nthe film was a film\n\n'; done >text.txt
  printf 'label\ttext_a\n' >train.tsv
  for i in 1 2 3 4; do printf '1\tthe film is good\n0\ta film was bad\n'; done >>train.tsv
  printf 'text_a\nthe film was good\nthe film is bad\n' >test.tsv
  local vocab=(--vocab_path models/vocab.txt) one=(--set run.threads_per_rank=1)
  expect "preprocess.py" "$tessera" python3 preprocess.py --corpus_path text.txt "${vocab[@]}" --dataset_path dataset.pt \
    --processes_num 8 --seq_length 16 --dup_factor 2 --data_processor bert
  expect "pretrain.py" "$tessera" python3 pretrain.py --dataset_path dataset.pt "${vocab[@]}" --output_model_path models/bert.bin \
    --config_path models/bert/base_config.json --world_size 2 --gpu_ranks 0 1 --total_steps 6 --save_checkpoint_steps 3 \
    --report_steps 1 --batch_size 4 "${one[@]}"
  expect "run_classifier.py" "$tessera" python3 finetune/run_classifier.py --pretrained_model_path models/bert.bin-6 "${vocab[@]}" \
    --config_path models/bert/base_config.json --train_path train.tsv --dev_path train.tsv --output_model_path models/fine.bin \
    --epochs_num 2 --batch_size 4 --seq_length 16 "${one[@]}"
  expect "accuracy is reported" grep -q accuracy models/fine.bin/metrics.jsonl
  expect "run_classifier_infer.py" "$tessera" python3 inference/run_classifier_infer.py --load_model_path models/fine.bin \
    "${vocab[@]}" --config_path models/bert/base_config.json --test_path test.tsv --prediction_path out.tsv --labels_num 2 \
    --seq_length 16 --output_prob
  expect "a prediction for each text" test "$(wc -l <out.tsv)" = 3
  printf 'text_a\tlabel\nthe film is good\tO B O O\na film was bad\tO B O O\n' >tags.tsv
  printf '{"O": 0, "B": 1}' >ids.json
  expect "run_ner.py" "$tessera" python3 finetune/run_ner.py "${vocab[@]}" --label2id_path ids.json --train_path tags.tsv \
    --dev_path tags.tsv --output_model_path models/tags.bin --epochs_num 1 --batch_size 2 --seq_length 16 "${one[@]}"
}

functions_of_the_shell() {
  cd "$box" || exit 1
  "$tessera" shell >functions
  mkdir bin
  ln -s "$tessera" bin/tessera
  printf 'print("python itself")\n' >mine.py
  expect "a script that is not known is run by python" \
    bash -c 'PATH=$PWD/bin:$PATH; source functions; python3 mine.py' >out
  expect "its output" says "python itself" out
  bash -c 'PATH=$PWD/bin:$PATH; source functions; MODEL=none; python3 run_clm.py --model_name_or_path $MODEL --do_train' 2>err
  expect "a known one by tessera" says "there is no such model" err
}

claim "a command trains to the bits of its configuration" trains_to_the_bits_of_its_configuration
claim "a dry run says what a command means" a_dry_run_says_what_is_meant
claim "a script of Hugging Face trains" a_script_of_hugging_face_trains
claim "TencentPretrain's scripts prepare, pretrain, fine-tune and predict" tencentpretrain
claim "shell functions call tessera for scripts that it knows" functions_of_the_shell
claims_done
