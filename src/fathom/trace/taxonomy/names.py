"""Op types by the names that libraries give to their ops and kernels: one ordered table, the first match counts.

Each entry is an op type and regular expressions, separated by spaces, that are searched for in the name in lower case.
Order matters where a name says two things: a rotary embedding that also writes the cache, a normalisation that also
quantises, a matrix product with an activation after it. What is done first in such a kernel, or takes its time, is
above. Names were collected from traces and sources of the libraries that the comments name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache

NAMES: tuple[tuple[str, str], ...] = (
    # copies and fills by the driver: "Memcpy HtoD (Pinned -> Device)", HIP's "CopyHostToDevice"
    ("MemcpyHtoD", r"^memcpy\shtod copyhosttodevice"),
    ("MemcpyDtoH", r"^memcpy\sdtoh copydevicetohost"),
    ("MemcpyDtoD", r"^memcpy\sdtod ^memcpy\sptop ^memcpy copydevicetodevice amd_rocclr_copybuffer"),
    ("Fill", r"^memset amd_rocclr_fillbuffer"),
    # communication: NCCL, RCCL, c10d, gloo, the all-reduce kernels of vLLM, SGLang, TensorRT-LLM, AITER; DeepEP, MORI
    ("Copy", r"all_gather_copy_(in|out) copy_bucket_to_grad ^dma_request"),  # the last is MTIA's, in any direction
    ("CompiledGraph", r"^mtia\sprogram"),  # a whole network; its name is its user's
    ("ReduceScatter", r"reduce_?scatter"),
    ("AllReduce", r"all_?reduce cross_device_reduce quick_?reduce local_device_load_rmsnorm custom_ar"),
    ("AllGather", r"all_?gather"),
    ("AllToAll", r"all_?to_?all all2all moe_?a2a deep_?ep::\w*::?(dispatch|combine) ep(dispatch|combine) mori_ep"),
    ("SendRecv", r"sendrecv nccl\w*_(send|recv) c10d::(send|recv|isend|irecv) (nccl|gloo|ucc):(send|recv)"),
    ("Broadcast", r"nccl\w*broadcast c10d\w*::_?broadcast (nccl|gloo|ucc):_?broadcast"),
    ("Barrier", r"nccl\w*barrier c10d::barrier (nccl|gloo|ucc):barrier nvshmem\w*barrier symm_mem::barrier"),
    (
        "Collective",
        r"record_param_comms ^nccl rccl ^c10d ^_c10d ^gloo: ^ucc: ^mpi: mscclpp nvshmem deep_?ep:: "
        r"torch\.distributed",
    ),
    # state-space models and linear attention, before attention and convolution: mamba, flash-linear-attention, vLLM
    ("Conv2D", r"causal_?conv1d"),
    (
        "SelectiveScan",
        r"selective_(scan|state) chunk_(scan|state|cumsum)_(fwd|bwd) bmm_chunk_(fwd|bwd) state_passing_(fwd|bwd) "
        r"mamba ssd_chunk ssm_scan",
    ),
    (
        "LinearAttention",
        r"delta_rule gated_delta gdn_ chunk_gla chunk_kda fused_recurrent recompute_w_u chunk_(fwd|bwd)_kernel_ "
        r"wkv[0-9_] retention_(fwd|bwd) lightning_attn linear_att",
    ),
    # rotary embedding and the cache of keys and values
    (
        "RotaryEmbedding",
        r"rotary (?<![a-z])rope(?!rt) _rope apply_?rope mlarope ropequant biasrope mrope kn_entry_\w*(sbhd|thd) "
        r"applyrope",
    ),
    (
        "KVCacheWrite",
        r"reshape_and_cache concat_and_cache append_?pagedkv append_?paged_kv set_\w*kv_buffer store_kv_?cache "
        r"kv_?cache_?(update|write|store|append|copy) copy_blocks swap_blocks update_?kv_?cache write_kv",
    ),
    # attention: FlashAttention 2 and 3, xFormers, cuDNN, CK, AITER, FlashInfer, FlashMLA, TensorRT-LLM, Triton
    (
        "ScaledDotProductAttentionGrad",
        r"flash_?bwd flash_bprop fmha\w*_?(bwd|backward) fmha_cutlassb attention\w*_?(bwd|backward) "
        r"attn_?\w*(bwd|backward) flashattnbwd _bwd_kernel_(dq|dk|dv) _bwd_preprocess bwd_dot_do_o "
        r"sdpa\w*(bwd|backward)",
    ),
    (
        "PagedAttention",
        r"paged_?att unified_att (batch|single)_?decode decode_(attention|att) fmhasm\d+\w*forgen mla_a\d+w\d+ "
        r"flash_?mla mla_(decode|reduce|fwd|metadata) get_mla_metadata batchmlapage mla_paged flash_fwd_splitkv "
        r"flash_?decod fwdcombine splitkv_combine _fwd_(grouped_)?kernel_stage[12] "
        r"(?<![a-z])pa_(fwd|decode|ragged|bf16|fp16|fp8) \d+pa_(bf16|fp16) masked_multihead_att mmha kernel_mha "
        r"xqa_ sparse_mla",
    ),
    (
        "ScaledDotProductAttention",
        r"flash_?fwd flash_?att fmha att(entio)?n_fwd attention (batch|single)_?prefill sdpa flash_fprop flex_att "
        r"merge_?att merge_?state mqa_logits (?<![a-z])indexer aiter\d+fwd_ ^_fwd_kernel$ ^_attn_ attn_func "
        r"flashattn varlen_attn natten",
    ),
    # embedding tables, before optimizers: FBGEMM fuses the update into the backward pass
    (
        "EmbeddingBagGrad",
        r"split_embedding\w*backward dense_embedding\w*backward ssd_embedding\w*backward grad_indice_weights "
        r"embedding_?bag\w*(backward|grad) linearize_index splitlookupfunction cppnode<splitlookup",
    ),
    (
        "EmbeddingBag",
        r"split_embedding dense_embedding ssd_embedding nbit_\w*embedding embedding_?bag bounds_check_indices "
        r"table_?batched embedding_codegen (?<![a-z])tbe_",
    ),
    ("EmbeddingGrad", r"embedding\w*_?backward compute_grad_weight krn_partial sum_and_scatter embedding_grad"),
    ("Gather", r"permute_pooled_embs permute_\w*(sparse|1d|2d|lengths|indices) recat_ recat_embedding jagged"),
    ("Embedding", r"embedding"),
    # normalisations, before products and quantisation, which are fused into some
    ("RMSNormGrad", r"rms_?norm\w*(grad|backward|bwd) layer_norm_grad_input_kernel\w*<[^<>]*,\s?true>$"),
    ("RMSNorm", r"rms_?norm vectorized_layer_norm_kernel<[^<>]*,\s?true>$"),  # a switch of LayerNorm's kernels
    (
        "GroupNormGrad",
        r"group_?norm\w*(grad|backward|bwd) computeinternalgradients computebackwardfusedparams gammabeta1dbackward "
        r"gammabetabackwardcudakernel[12]",
    ),
    ("LayerNormGrad", r"layer_?norm_?\w*(grad|backward|bwd) gammabetabackward ln_bwd cucompute(part)?grad"),
    ("LayerNorm", r"layer_?norm ln_fwd"),
    ("GroupNorm", r"group_?norm computefusedparams"),
    ("BatchNormGrad", r"batch_?norm_?\w*(_bw|backward|bwd) bn_bw_ bnbwd batchnormbwd"),
    ("BatchNorm", r"batch_?norm bn_fw_ bnfwd"),
    ("WeightNorm", r"weight_norm renorm"),
    ("Normalization", r"rowwisemoments instance_?norm l2norm_(fwd|bwd) qk_?norm norm_(fwd|bwd)_kernel"),
    # convolution: cuDNN, CUTLASS, MIOpen, Composable Kernel; oneDNN's ops
    (
        "Conv2DBackFilter",
        r"wgrad igemm_wrw conv\w*wrw wrw_ bwd_?weight backward_?filter backwardweights "
        r"depthwise\w*(grad|backward)_weight",
    ),
    (
        "Conv2DBackInput",
        r"depthwise\w*backward dgrad igemm_bwd naive_conv\w*_bwd conv\w*bwd_?data bwd_data "
        r"(?<!softmax_)backward_?data conv_transpose",
    ),
    (
        "Conv2D",
        r"fprop convolve dse:: cask_cudnn conv(olution)?_?[123]?d?(_|fwd|forward|pointwise|$) winograd scudnn "
        r"igemm_fwd sp3asmconv im2col im2d2col col2im depthwise deform\w*conv fft[12]d_\w*[rc]2[rc] "
        r"pointwise_mult_and_sum_complex flip_filter implicit_?gemm(?!\w*sparse) conv\dd",
    ),
    # routing of tokens to experts: vLLM, SGLang, TensorRT-LLM, AITER, triton_kernels, Megatron
    (
        "MoERouting",
        r"topk_?(softmax|gating|sigmoid) grouped_topk moe_?align moe_?sort(?!ed) moe_fused_gate routing "
        r"deepseek_v3_topk _topk_(forward|backward) sum_bitmatrix "
        r"expert_?(tokens|offset|prefix|first|maps|histogram) compute_expert computestrides topk_forward "
        r"moe::dev::routing moe_topk fused_topk noauxtc topk_transform",
    ),
    (
        "MoEPermute",
        r"expand_?input_?rows finalize_?moe moe::dev::(finalize|permute) finalize_?kernel moe_?sum "
        r"moe_?(un)?permute ep_(gather|scatter) shuffle_(mul|rows) moe_weighted_reduce finalize_matmul "
        r"(pre|post)_reorder token_?permut reduce_grouped (un)?permute_(kernel|mask_map|index_map) sort_chunks_by",
    ),
    # matrix products
    ("Activation", r"do_?activation"),
    (
        "SparseMatMul",
        r"spmm sddmm csrmm cusparse spgemm sputnik sparse_gemm sparse_tensorop 16832spgemm semi_structured",
    ),
    ("Dequantize", r"dequantize_weights awq_dequant"),
    (
        "GroupedMatMul",
        r"fused_moe moe_?(ck2stages|cktile|mxgemm|wna16|flatmm|gemm|mm) fused_experts (grouped?|batched_dyn)_?gemm "
        r"mfma_moe\d fmoe marlin_moe matmul_ogs grouped_mm group_?gemm gemm_?grouped "
        r"bmm_(mx)?(e\dm\d|bfloat16|fp16|fp32)_ moe_forward m_grouped",
    ),
    (
        "ScaledMatMul",
        r"(fp8|fp4|int8|int4|mxfp\d|i8|f8|f4)\w*(gemm|_mm|matmul|mul_mat|linear) "
        r"(a8w8|a4w4|w8a8|w4a16|w4a8|afp4wfp4)\w*(gemm|_mm|matmul|linear) "
        r"(gemm|mm|matmul)\w*_(fp8|fp4|int8|int4|nvfp4|mxfp\d|a8w8|a4w4|a16w4|w8a8|afp4|i8|e\dm\d) "
        r"blockscale(?!quant) scaled_(mm|gemm) gptq(?!_shuffle) awq marlin machete mul_mat_(q|vec) kgemm_4bit "
        r"gemv_4bit igemmlt llm_int8",
    ),
    (
        "MatMul",
        r"(?<!fb)gemm gemv cublas nvjet cutlass xmma cijk_ splitk_?reduce split_k_reduce matmul wv_?split_?k "
        r"tensile stream_?k(?![a-z]) (?<![a-z])dot_kernel reduce_1block_kernel llmm (?<![a-z])[ab]?mm_kernel "
        r"linear_pointwise mkl_linear epilogue::impl::globalkernel ^bmm_ bmm_kernel general_gemm te_gemm "
        r"_linear_kernel linear_fwd",
    ),
    # recurrent layers
    ("LSTMCell", r"lstm_cell"),
    ("GRUCell", r"gru_cell"),
    (
        "RNN",
        r"rnncell (lstm|gru|rnn)_elementwise lstm\w*(cell|pointwise|fused) gru\w*(cell|pointwise|fused) "
        r"persist_?rnn rnn_block elemwiserrnn cudnn_rnn miopenrnn",
    ),
    # quantisation
    ("Dequantize", r"dequant quantizedto _to_float_ rowwise_to_float hfp8_to"),
    (
        "Quantize",
        r"quant(?!ile) qparam float8_copy cvt_fp16_to_fp4 cvt_\w*_to_fp\d to_(fp8|fp4|hfp8|mxfp) "
        r"floatto\w*(fp8|hfp8|int) cast_transpose",
    ),
    # losses, softmax
    ("CrossEntropy", r"nll_?(loss|criterion) cross_?entropy binary_cross_entropy"),
    ("CTCLoss", r"ctc_?loss"),
    ("MSELoss", r"mse_(kernel|backward|loss)"),
    ("HuberLoss", r"smooth_l1 huber"),
    ("Softmax", r"softmax_?warp softmax"),
    # optimizers, before the functors of lists of tensors: torch, Apex, DeepSpeed, bitsandbytes
    ("ApplyAdam", r"adam_?w?(functor|capturable|math|mode|kernel|_cuda) fused_?adam multi_tensor_adam"),
    ("ApplySGD", r"sgd_?(functor|math|momentum|kernel) fused_?sgd multi_tensor_sgd"),
    ("ApplyAdagrad", r"adagrad"),
    ("ApplyLAMB", r"lamb_?(stage|functor|kernel)(?!da) multi_tensor_lamb fused_?lamb"),
    ("ApplyUnscale", r"amp_(non_finite|foreach|update_scale) non_finite_check"),
    ("ApplyOptimizer", r"koptimizer fused_optimizer novograd rmspropfunctor lion_kernel muon"),
    # token sampling: vLLM, SGLang, FlashInfer, TensorRT-LLM, AITER
    (
        "TokenSampling",
        r"top_?[kp]_?(top_?[kp]_?)?(sampl|mask|renorm) sampling(from|_from)?(prob|logits|kernel) gumbel mix_sample "
        r"min_?p_sampl penalt(y|ies) rejection_sampl (expand|greedy|random)_sample sample_recovered bad_?words "
        r"logit_?bias radixtopkkernel_unified speculative_sampl",
    ),
    # sorting, searching, scanning; cub, thrust, rocPRIM
    (
        "Sort",
        r"radix_?sort bitonic sort_?(kv|pairs|keys|bywarp) topk merge_?sort segmented_?sort onesweep radixselect "
        r"radixfind block_?wise_?\w*kcounts kthvalue median searchsorted bucketize devicesegmentedsort unique "
        r"device_merge (?<![a-z])nms _sort_ argsort radix_",
    ),
    (
        "Scan",
        r"cumsum offsets_range device_?scan scan_(kernel|inner|outer|by_key|dim|init) lookback_scan "
        r"tensor_kernel_scan inclusive_scan exclusive_scan cumprod",
    ),
    # indexing
    (
        "Select",
        r"deviceselect device_?(compact|partition|flag) compact_?init where_kernel masked_(fill|select|scatter) "
        r"nonzero select_if",
    ),
    (
        "Scatter",
        r"scatter_gather_internal_kernel<true index_put indexing_backward scatter_add index_add indexfunc "
        r"(?<!reduce_)scatter(?!_gather) index_copy index_fill index_reduce put_kernel",
    ),
    (
        "Gather",
        r"scatter_gather_internal_kernel<false index_?select gather index_kernel index_elementwise take_kernel "
        r"indexing permute_1d lengths_range to_dense_repr",
    ),
    # pooling, resampling, transforms
    ("MaxPoolGrad", r"max_?pool\w*(backward|bwd|grad) pooling_?\w*bwd"),
    ("MaxPool", r"max_?pool pooling_fw mlopooling cudnn\w*pooling"),
    ("AvgPoolGrad", r"avg_?pool\w*(backward|bwd|grad) adaptive_average_grad"),
    ("AvgPool", r"avg_?pool pooling adaptive_average_pool"),
    ("RoiAlign", r"roi_(align|pool) roialign roipool"),
    ("GridSampleGrad", r"grid_?sampl\w*backward"),
    ("GridSample", r"grid_?sampl affine_grid"),
    ("InterpolateGrad", r"upsampl\w*(backward|bwd|grad) interpolat\w*(backward|grad)"),
    ("Interpolate", r"upsampl interpolat resize_(bilinear|nearest|bicubic)"),
    ("PixelShuffle", r"pixel_?(un)?shuffle channel_shuffle"),
    (
        "FFT",
        r"regular_fft vector_fft cufft rocfft (?<![a-z])fft dft_ radix\d+_fft bluestein fft_(rtc|fwd|back) "
        r"hadamard multi_bluestein",
    ),
    # random numbers
    ("Dropout", r"dropout bernoulli masked_scale"),
    ("RandomNormal", r"normal_(kernel|distribution|and_transform) distribution\w*normal random_normal log_normal"),
    (
        "RandomUniform",
        r"distribution_(elementwise|nullary|unary|binary) uniform_(kernel|and) randperm philox multinomial "
        r"exponential_kernel random_(kernel|from|full) sample_\w*replacement curand rocrand",
    ),
    # layouts, concatenation, padding, copies and fills of tensors
    ("Concat", r"cat_?array concat chunk_cat catdim"),
    (
        "Transpose",
        r"transpose nchw_?to_?nhwc nhwc_?to_?nchw nchw2nhwc nhwc2nchw tensor_?permute convert_?layout cnhw2nchw "
        r"tensor_reorder",
    ),
    ("Pad", r"addpadding reflection_pad replication_pad constant_pad pad_kernel"),
    ("Tile", r"repeat_interleave repeat_kernel tile_kernel"),
    (
        "Fill",
        r"fill_?(functor|kernel|value|buffer) memset triu_tril (?<![a-z])(tril|triu)(?![a-z]) arange linspace "
        r"elementwise_kernel_with_index eye_kernel set_?tensor subtensoropwithscalar zero_kernel zerofunctor",
    ),
    (
        "Copy",
        r"direct_copy (bfloat16|float16|half|float)_copy copy_?(kernel|device_to|functor|block) "
        r"subtensoropwithcasttensor nhwcslice flip_kernel roll_cuda ucopy cast_?kernel batched_copy memcpy "
        r"tensor_cast",
    ),
    # activations, after the products that they are fused into
    ("SiLUGrad", r"(silu|swish|swiglu|mish)\w*(backward|bwd|grad)"),
    ("SiLU", r"silu swiglu swish mish"),
    ("GELUGrad", r"geglu?\w*(backward|bwd) gelu_?\w*(backward|bwd|grad)"),
    ("GELU", r"gelu geglu"),
    ("GLUGrad", r"(?<![a-z])glu_backward"),
    ("GLU", r"(?<![a-z])glu(_|$|jitter)"),
    ("ELUGrad", r"(?<![a-z])[cs]?elu_backward"),
    ("ELU", r"(?<![a-z])[cs]?elu_(kernel|impl)"),
    ("ReluGrad", r"threshold relu\w*_?backward hardtanh_backward shrink_backward"),
    ("Relu", r"relu clamp hardtanh shrink_kernel"),
    ("TanhGrad", r"tanh_backward"),
    ("Tanh", r"tanh"),
    ("SigmoidGrad", r"(sigmoid|softplus)_backward"),
    ("Sigmoid", r"sigmoid softplus"),
    ("Activation", r"act_and_mul activation_?kernel activationderivative gated_act miopenneuron"),
    # arithmetic: the functors of torch's elementwise kernels, cuDNN's and MIOpen's tensor ops
    ("Compare", r"compare_?(eq|ne|scalar|functor|kernel) compare\w*functor bitwise logical_ isnan isfinite isinf"),
    ("Mul", r"mul_?functor (?<![a-z])scal_kernel multiplies scale_?(packed)?_?tensor scale_?functor axpby mulscalar"),
    ("Div", r"div_?functor divides div_(trunc|floor|true) remainder fmod reciprocal"),
    ("Maximum", r"(maximum|minimum|fmax|fmin)_?\w*kernel (maximum|minimum)functor"),
    (
        "Add",
        r"functor(onself|onother)?_add add_?functor std::plus addc(mul|div) pointwise_?op_?\w*functor lerp "
        r"add_?(tensor|bias) bias_?add axpy",
    ),
    ("Sub", r"std::minus sub_?functor"),
    ("Pow", r"(?<![a-z])(pow|exp|log|sqrt|rsqrt|sin|cos|erf)_?(1p|2|10|m1)?_?(tensor|kernel|functor)"),
    ("Elementwise", r"op_?tensor\d op_?\dd?tensor"),
    # reductions, last: many kernels above end in one
    ("Max", r"(max|min)(nan)?(ops|functor|_values|_all|_launch) arg(max|min) aminmax reduce_?(max|min)"),
    ("Histogram", r"histogram histc bincount"),
    (
        "Sum",
        r"sum_functor meanops welford normtwo normops lpnorm l2norm reduce_kernel devicereduce reduce_by_key "
        r"segment_?reduce reduce_segments reducebykey convex_sum reduce_?sum (?<![a-z])sum_kernel mean_kernel",
    ),
)

_SPECIAL = re.compile(r"[\\()\[\]{}|^$.+*?]")
# a group of alternatives, or one character, that may be absent where "?" follows
_CHOICE = re.compile(r"\((?P<group>[\w|:]+)\)(?P<optional>\??)(?![*+{])|(?<!\\)(?P<single>\w)\?")
# what need not be in a matching name: groups, classes, escapes, and a character that may be absent
_OPTIONAL = re.compile(r"\([^()]*\)|\[[^]]*\]|\\.|.[?*]|.\{[^}]*\}|[\^$.+?*]")
_GROUP = re.compile(r"\(([\w|]+)\)(?![?*+{])")  # one of which a match has exactly one alternative
_START = 3  # characters by which texts are looked up


def spellings(word: str) -> list[str]:
    """The texts that a word of NAMES stands for, where it is alternatives of plain text; else itself."""
    choice = _CHOICE.search(word)
    if choice is None:
        return [word]
    options = choice["group"].split("|") if choice["group"] else [choice["single"]]
    if choice["optional"] or choice["single"]:
        options = ["", *options]
    whole = [word[: choice.start()] + option + word[choice.end() :] for option in options]
    found = [each for part in whole for each in spellings(part)]
    return [word] if any(map(_SPECIAL.search, found)) else found


def required(word: str) -> str:
    """The longest text that every name has in which a regular expression of NAMES is found; "" where none is sure."""
    left, before = word, ""
    while left != before:  # groups may be nested
        left, before = _OPTIONAL.sub(" ", left), left
    return "" if "|" in left else max(left.split(" "), key=len)


def divided(word: str) -> list[str]:
    """Expressions that together find what a word of NAMES does, each with a text of its own to look up, if possible."""
    found = []
    for spelling in spellings(word):
        group = _GROUP.search(spelling) if len(required(spelling)) < _START else None
        options = group[1].split("|") if group else []
        found += [spelling[: group.start()] + option + spelling[group.end() :] for option in options if group]
        found += [] if group else [spelling]
    return found


Word = tuple[int, str, str, str]  # place in the table, op type, text that every match has, expression


def _by_start() -> dict[tuple[str, ...], list[Word]]:
    """The words of NAMES by the characters that their texts begin with; those with short texts under ()."""
    found: dict[tuple[str, ...], list[Word]] = defaultdict(list)
    for place, (kind, words) in enumerate(NAMES):
        for each in (expression for word in words.split() for expression in divided(word)):
            text = required(each)
            found[tuple(text[:_START]) if len(text) >= _START else ()].append((place, kind, text, each))
    return dict(found)


_WORDS = _by_start()
_compiled = cache(re.compile)


@cache
def named_type(name: str) -> str | None:
    """The op type that a library's name for an op or a kernel tells; None for a name that tells nothing."""
    lower = name.lower()
    starts = {(), *zip(*(lower[at:] for at in range(_START)), strict=False)}
    candidates = [word for start in starts & _WORDS.keys() for word in _WORDS[start] if word[2] in lower]
    for _, kind, text, word in sorted(candidates):
        if text == word or _compiled(word).search(lower):
            return kind
    return None
