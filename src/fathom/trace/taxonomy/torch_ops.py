"""The op types of torch's own ops, by class of the 2016 paper: one table (docs/op-types.md lists it).

The types of the paper's Fig. 3 have its names; an op that is none of them has a type of its own, and no type means two
things. Names are without "aten::" and without the trailing "_" of in-place variants.
"""

from __future__ import annotations

# class -> op type -> torch ops
TABLE: dict[str, dict[str, str]] = {
    "A": {
        "Add": "add addcmul addcdiv lerp _add_relu _foreach_add _foreach_addcmul _foreach_addcdiv _foreach_lerp",
        "Sub": "sub rsub _foreach_sub",
        "Mul": "mul _foreach_mul",
        "Div": "div true_divide reciprocal floor_divide remainder fmod _foreach_div _foreach_reciprocal",
        "Pow": "pow sqrt rsqrt square exp exp2 expm1 log log2 log10 log1p logaddexp logaddexp2 logit logit_backward "
        "xlogy cos sin tan acos asin atan atan2 cosh sinh acosh asinh atanh sinc hypot erf erfc _foreach_sqrt "
        "_foreach_rsqrt _foreach_pow _foreach_exp _foreach_log",
        "Special": "erfinv lgamma digamma polygamma igamma igammac i0 special_erfcx special_i0e special_i1 "
        "special_i1e special_ndtri special_log_ndtr special_entr special_xlog1py special_zeta special_airy_ai "
        "special_bessel_j0 special_bessel_j1 special_bessel_y0 special_bessel_y1 special_modified_bessel_i0 "
        "special_modified_bessel_i1 special_modified_bessel_k0 special_modified_bessel_k1 "
        "special_scaled_modified_bessel_k0 special_scaled_modified_bessel_k1 special_spherical_bessel_j0 "
        "special_chebyshev_polynomial_t special_chebyshev_polynomial_u special_chebyshev_polynomial_v "
        "special_chebyshev_polynomial_w special_hermite_polynomial_h special_hermite_polynomial_he "
        "special_laguerre_polynomial_l special_legendre_polynomial_p special_shifted_chebyshev_polynomial_t "
        "special_shifted_chebyshev_polynomial_u special_shifted_chebyshev_polynomial_v "
        "special_shifted_chebyshev_polynomial_w",
        "Complex": "complex polar angle conj_physical _conj_physical",
        "Softmax": "softmax _softmax log_softmax _log_softmax _softmax_backward_data _masked_softmax "
        "_masked_softmax_backward _safe_softmax _sparse_softmax _sparse_log_softmax "
        "_sparse_softmax_backward_data _sparse_log_softmax_backward_data",
        "Relu": "relu relu6 leaky_relu hardtanh clamp clamp_min clamp_max threshold hardshrink softshrink "
        "rrelu_with_noise _prelu_kernel _foreach_clamp_min _foreach_clamp_max",
        "ReluGrad": "threshold_backward hardtanh_backward leaky_relu_backward hardshrink_backward softshrink_backward "
        "rrelu_with_noise_backward _prelu_kernel_backward",
        "GELU": "gelu",
        "GELUGrad": "gelu_backward",
        "SiLU": "silu hardswish mish",
        "SiLUGrad": "silu_backward hardswish_backward mish_backward",
        "ELU": "elu celu selu",
        "ELUGrad": "elu_backward",
        "GLU": "glu",
        "GLUGrad": "glu_backward",
        "Tanh": "tanh",
        "TanhGrad": "tanh_backward",
        "Sigmoid": "sigmoid log_sigmoid log_sigmoid_forward hardsigmoid softplus",
        "SigmoidGrad": "sigmoid_backward log_sigmoid_backward hardsigmoid_backward softplus_backward",
        "LSTMCell": "_thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward _thnn_fused_lstm_cell_backward_impl",
        "GRUCell": "_thnn_fused_gru_cell _thnn_fused_gru_cell_backward",
        "Neg": "neg positive abs sign sgn copysign _foreach_neg _foreach_abs _foreach_sign",
        "Round": "floor ceil round trunc frac frexp nan_to_num nextafter",
        "Maximum": "maximum minimum fmax fmin heaviside gcd lcm _foreach_maximum _foreach_minimum",
        "Compare": "eq ne lt le gt ge logical_and logical_or logical_xor logical_not bitwise_and bitwise_or "
        "bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ __lshift__ __rshift__ "
        "__iand__ __ior__ __ixor__ isfinite isnan isinf isposinf isneginf signbit isin equal",
        "Quantize": "quantize_per_tensor quantize_per_tensor_dynamic quantize_per_channel "
        "fake_quantize_per_tensor_affine_cachemask fake_quantize_per_tensor_affine_cachemask_backward "
        "fake_quantize_per_channel_affine_cachemask fake_quantize_per_channel_affine_cachemask_backward "
        "_fake_quantize_learnable_per_tensor_affine _fake_quantize_learnable_per_tensor_affine_backward "
        "_fake_quantize_learnable_per_channel_affine _fake_quantize_learnable_per_channel_affine_backward "
        "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fused_moving_avg_obs_fq_helper "
        "choose_qparams_optimized _choose_qparams_per_tensor",
        "Dequantize": "dequantize int_repr",
    },
    "B": {
        "MatMul": "mm addmm bmm baddbmm addbmm mv addmv dot vdot addr ger outer _addmm_activation mkldnn_linear "
        "mkldnn_linear_backward _trilinear",
        "ScaledMatMul": "_scaled_mm _scaled_mm_v2 _int_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu "
        "_weight_int8pack_mm _mixed_dtypes_linear _dyn_quant_matmul_4bit",
        "GroupedMatMul": "_grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2",
        "SparseMatMul": "_sparse_mm _sparse_addmm _sparse_sparse_matmul _sparse_mm_reduce_impl sparse_sampled_addmm "
        "_sparse_mm_reduce_impl_backward _sparse_semi_structured_mm _sparse_semi_structured_addmm "
        "_sparse_semi_structured_linear _cslt_sparse_mm",
        "LinearAlgebra": "cholesky cholesky_inverse cholesky_solve _cholesky_solve_helper linalg_cholesky "
        "linalg_cholesky_ex qr geqrf ormqr linalg_qr linalg_householder_product svd _linalg_svd linalg_svd "
        "linalg_svdvals linalg_eig _linalg_eigvals linalg_eigvals linalg_eigh _linalg_eigh linalg_eigvalsh linalg_inv "
        "linalg_inv_ex inverse linalg_solve linalg_solve_ex _linalg_solve_ex linalg_solve_triangular triangular_solve "
        "linalg_lstsq linalg_lu linalg_lu_factor linalg_lu_factor_ex linalg_lu_solve lu_solve lu_unpack _lu_with_info "
        "linalg_ldl_factor linalg_ldl_factor_ex linalg_ldl_solve linalg_det _linalg_det linalg_slogdet "
        "_linalg_slogdet det _linalg_check_errors",
        "Distance": "_cdist_forward _cdist_backward _pdist_forward _pdist_backward _euclidean_dist",
        "FFT": "_fft_r2c _fft_c2c _fft_c2r",
        "RNN": "mkldnn_rnn_layer mkldnn_rnn_layer_backward _cudnn_rnn _cudnn_rnn_backward miopen_rnn "
        "miopen_rnn_backward quantized_lstm quantized_gru quantized_rnn_tanh_cell quantized_rnn_relu_cell "
        "quantized_lstm_cell quantized_gru_cell",
        "ScaledDotProductAttention": "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_attention_math "
        "_scaled_dot_product_attention_math_for_mps _flash_attention_forward _efficient_attention_forward "
        "_cudnn_attention_forward _triton_scaled_dot_attention",
        "ScaledDotProductAttentionGrad": "_scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_cudnn_attention_backward "
        "_scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_fused_attention_overrideable_backward _flash_attention_backward "
        "_efficient_attention_backward _cudnn_attention_backward",
    },
    "C": {
        "CrossEntropy": "cross_entropy_loss nll_loss nll_loss_nd nll_loss_forward nll_loss_backward "
        "nll_loss2d_forward nll_loss2d_backward _log_softmax_backward_data binary_cross_entropy_with_logits "
        "binary_cross_entropy binary_cross_entropy_backward",
        "MSELoss": "mse_loss mse_loss_backward",
        "HuberLoss": "huber_loss huber_loss_backward smooth_l1_loss smooth_l1_loss_backward",
        "MarginLoss": "multi_margin_loss multi_margin_loss_backward multilabel_margin_loss_forward "
        "multilabel_margin_loss_backward soft_margin_loss soft_margin_loss_backward",
        "KLDivLoss": "kl_div",
        "CTCLoss": "ctc_loss _ctc_loss _ctc_loss_backward _cudnn_ctc_loss miopen_ctc_loss",
        "MaxPool": "max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices "
        "mkldnn_max_pool2d mkldnn_max_pool3d quantized_max_pool1d quantized_max_pool2d "
        "quantized_max_pool3d adaptive_max_pool2d adaptive_max_pool3d "
        "fractional_max_pool2d fractional_max_pool3d max_unpool2d max_unpool3d",
        "MaxPoolGrad": "max_pool2d_with_indices_backward max_pool3d_with_indices_backward mkldnn_max_pool2d_backward "
        "mkldnn_max_pool3d_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward "
        "fractional_max_pool2d_backward fractional_max_pool3d_backward",
        "AvgPool": "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d "
        "_adaptive_avg_pool2d _adaptive_avg_pool3d mkldnn_adaptive_avg_pool2d",
        "AvgPoolGrad": "avg_pool2d_backward avg_pool3d_backward _adaptive_avg_pool2d_backward "
        "_adaptive_avg_pool3d_backward mkldnn_adaptive_avg_pool2d_backward",
        "BatchNorm": "batch_norm native_batch_norm cudnn_batch_norm miopen_batch_norm _native_batch_norm_legit "
        "_native_batch_norm_legit_no_training _batch_norm_with_update _batch_norm_no_update batch_norm_stats "
        "_native_batch_norm_legit_functional _batch_norm_with_update_functional "
        "batch_norm_elemt batch_norm_gather_stats batch_norm_gather_stats_with_counts batch_norm_update_stats",
        "BatchNormGrad": "native_batch_norm_backward cudnn_batch_norm_backward miopen_batch_norm_backward "
        "batch_norm_backward batch_norm_backward_elemt batch_norm_backward_reduce",
        "LayerNorm": "layer_norm native_layer_norm",
        "LayerNormGrad": "native_layer_norm_backward",
        "GroupNorm": "native_group_norm",
        "GroupNormGrad": "native_group_norm_backward",
        "RMSNorm": "rms_norm _fused_rms_norm",
        "RMSNormGrad": "_fused_rms_norm_backward",
        "WeightNorm": "_weight_norm _weight_norm_interface _weight_norm_interface_backward renorm",
        "Interpolate": "upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d "
        "_upsample_nearest_exact2d _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d "
        "upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa "
        "_upsample_lanczos2d_aa",
        "InterpolateGrad": "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward "
        "_upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward "
        "upsample_linear1d_backward upsample_bilinear2d_backward upsample_trilinear3d_backward "
        "upsample_bicubic2d_backward _upsample_bilinear2d_aa_backward _upsample_bicubic2d_aa_backward",
        "GridSample": "grid_sampler_2d grid_sampler_3d cudnn_grid_sampler affine_grid_generator "
        "cudnn_affine_grid_generator _grid_sampler_2d_cpu_fallback",
        "GridSampleGrad": "grid_sampler_2d_backward grid_sampler_3d_backward cudnn_grid_sampler_backward "
        "cudnn_affine_grid_generator_backward",
        "EmbeddingBag": "_embedding_bag _embedding_bag_forward_only",
        "EmbeddingBagGrad": "_embedding_bag_backward _embedding_bag_dense_backward _embedding_bag_sparse_backward "
        "_embedding_bag_per_sample_weights_backward",
        "Sum": "sum nansum mean prod logsumexp linalg_vector_norm norm var std var_mean std_mean any all "
        "count_nonzero trace segment_reduce _segment_reduce_backward hash_tensor _foreach_norm",
        "Max": "max min amax amin aminmax _aminmax argmax argmin _foreach_max",
        "Histogram": "histc histogram _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors "
        "bincount",
        "Scan": "cumsum cumprod logcumsumexp _logcumsumexp cummax cummin _cummax_helper _cummin_helper "
        "cummaxmin_backward cumprod_backward",
        "Sort": "sort msort argsort topk kthvalue median nanmedian mode searchsorted bucketize _unique _unique2 "
        "unique_consecutive unique_dim unique_dim_consecutive",
    },
    "D": {
        "Conv2D": "conv2d conv1d conv3d convolution _convolution convolution_overrideable cudnn_convolution "
        "cudnn_convolution_transpose mkldnn_convolution miopen_convolution miopen_convolution_transpose "
        "miopen_depthwise_convolution thnn_conv2d _slow_conv2d_forward slow_conv3d_forward slow_conv_dilated2d "
        "slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d cudnn_convolution_relu "
        "cudnn_convolution_add_relu miopen_convolution_relu miopen_convolution_add_relu _conv_depthwise2d "
        "conv_depthwise3d _nnpack_spatial_convolution conv_tbc",
        "Conv2DBackward": "convolution_backward _slow_conv2d_backward conv_tbc_backward "
        # of torch before 1.11
        "convolution_backward_overrideable thnn_conv2d_backward thnn_conv_depthwise2d_backward "
        "slow_conv3d_backward slow_conv_dilated2d_backward slow_conv_dilated3d_backward "
        "slow_conv_transpose2d_backward slow_conv_transpose3d_backward",
        "Conv2DBackFilter": "cudnn_convolution_backward_weight cudnn_convolution_transpose_backward_weight "
        "mkldnn_convolution_backward_weights miopen_convolution_backward_weight "
        "miopen_convolution_transpose_backward_weight miopen_depthwise_convolution_backward_weight",
        "Conv2DBackInput": "cudnn_convolution_backward_input cudnn_convolution_transpose_backward_input "
        "mkldnn_convolution_backward_input miopen_convolution_backward_input "
        "miopen_convolution_transpose_backward_input miopen_depthwise_convolution_backward_input",
    },
    "E": {
        "RandomNormal": "normal randn randn_like log_normal",
        "RandomUniform": "uniform rand rand_like randint randint_like random randperm multinomial exponential "
        "geometric cauchy poisson binomial _standard_gamma _standard_gamma_grad _sample_dirichlet _dirichlet_grad",
        "Dropout": "bernoulli native_dropout native_dropout_backward _fused_dropout _masked_scale",
    },
    "F": {
        "ApplySGD": "_fused_sgd",
        "ApplyAdam": "_fused_adam",
        "ApplyAdamW": "_fused_adamw",
        "ApplyAdagrad": "_fused_adagrad",
        "ApplyUnscale": "_amp_foreach_non_finite_check_and_unscale _amp_update_scale",
    },
    "G": {
        "Transpose": "transpose t permute swapaxes swapdims numpy_T mT mH matrix_H movedim moveaxis adjoint to_mkldnn "
        "mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight",
        "Tile": "expand expand_as repeat repeat_interleave broadcast_to tile",
        "Select": "where masked_fill masked_select masked_scatter masked_scatter_backward masked_select_backward "
        "nonzero nonzero_static",
        "Pad": "pad constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d "
        "replication_pad2d replication_pad3d reflection_pad1d_backward reflection_pad2d_backward "
        "reflection_pad3d_backward replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward",
        "Reshape": "view reshape _reshape_alias _unsafe_view flatten unflatten squeeze unsqueeze as_strided view_as "
        "detach alias select slice narrow split chunk tensor_split hsplit vsplit dsplit unbind split_with_sizes "
        "unsafe_split unsafe_split_with_sizes unsafe_chunk lift_fresh unfold diagonal linalg_diagonal view_as_real "
        "view_as_complex real imag _conj _neg_view _reshape_copy atleast_1d atleast_2d atleast_3d crow_indices "
        "col_indices indices _indices values _values",
        "Shape": "size stride numel sym_size result_type item _local_scalar_dense is_nonzero _fused_sdp_choice "
        "cudnn_is_acceptable _use_cudnn_ctc_loss _use_miopen_ctc_loss _nnpack_available is_same_size dense_dim "
        "sparse_dim _nnz _assert_async _functional_assert_async q_scale q_zero_point qscheme is_coalesced "
        "promote_types",
        "Concat": "cat stack concat concatenate hstack vstack dstack column_stack _chunk_cat",
        "PixelShuffle": "pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle",
        "Unfold": "im2col col2im",
        "Gather": "index gather index_select take take_along_dim _unsafe_index _unsafe_masked_index sparse_mask",
        "Embedding": "embedding embedding_renorm",
        "EmbeddingGrad": "embedding_backward embedding_dense_backward embedding_sparse_backward",
        "Scatter": "index_put _index_put_impl _unsafe_index_put _unsafe_masked_index_put_accumulate put scatter "
        "scatter_add scatter_reduce index_add index_reduce index_copy index_fill select_scatter slice_scatter "
        "diagonal_scatter as_strided_scatter select_backward slice_backward diagonal_backward gather_backward "
        "index_select_backward unfold_backward trace_backward value_selecting_reduction_backward",
        "Copy": "copy clone contiguous _to_copy _copy_from _copy_from_and_resize flip roll _pin_memory record_stream "
        "set_data alias_copy as_strided_copy detach_copy diagonal_copy expand_copy narrow_copy permute_copy "
        "select_copy slice_copy split_copy split_with_sizes_copy squeeze_copy t_copy transpose_copy unbind_copy "
        "unfold_copy unsqueeze_copy view_copy _to_dense _to_sparse _coalesce _convert_indices_from_coo_to_csr "
        "_convert_indices_from_csr_to_coo _jagged_to_padded_dense_forward _padded_dense_to_jagged_forward "
        "_nested_from_padded _foreach_copy",
        "Fill": "zero fill zeros ones full zeros_like ones_like full_like new_zeros new_ones new_full arange eye "
        "linspace logspace scalar_tensor tril triu tril_indices triu_indices diag_embed fill_diagonal "
        "_efficientzerotensor _foreach_zero",
        "Allocate": "empty empty_like empty_strided empty_permuted empty_quantized new_empty new_empty_strided resize "
        "resize_as set _coalesced _sparse_coo_tensor_with_dims_and_tensors sparse_coo_tensor "
        "_sparse_coo_tensor_unsafe _sparse_compressed_tensor_unsafe _resize_output",
    },
}

# ops that call other ops, which are counted instead: the type of the time that is left to themselves, and of the whole
# on devices that implement them whole
COMPOSITES: dict[str, str] = {
    "MatMul": "linear matmul einsum tensordot inner kron chain_matmul bilinear linalg_matmul corrcoef cov "
    "linalg_vecdot linalg_multi_dot linalg_matrix_power",
    "ScaledDotProductAttention": "scaled_dot_product_attention _native_multi_head_attention "
    "_transformer_encoder_layer_fwd",
    "BatchNorm": "_batch_norm_impl_index instance_norm",
    "RNN": "lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell",
    "Relu": "prelu clip rrelu",
    "Distance": "cdist pdist pairwise_distance cosine_similarity",
    "CrossEntropy": "poisson_nll_loss",
    "MarginLoss": "cosine_embedding_loss hinge_embedding_loss margin_ranking_loss triplet_margin_loss "
    "multilabel_margin_loss",
    "MSELoss": "l1_loss",
    "Mul": "cross linalg_cross linalg_vander vander gradient trapezoid trapz cumulative_trapezoid multiply ldexp "
    "deg2rad rad2deg",
    "Sub": "diff subtract",
    "Compare": "allclose isreal isclose",
    "Histogram": "histogramdd",
    "Dropout": "dropout alpha_dropout feature_dropout feature_alpha_dropout",
    "Copy": "chalf combinations cartesian_prod to_dense_backward fliplr flipud rot90 fft_fftshift fft_ifftshift "
    "to_dense to_sparse coalesce nested_to_padded_tensor",
    "Shape": "is_pinned broadcast_tensors to type_as resolve_conj resolve_neg",
    "Div": "divide",
    "Pow": "float_power",
    "Special": "mvlgamma special_ndtr special_polygamma",
    "Quantize": "fake_quantize_per_tensor_affine fake_quantize_per_channel_affine fused_moving_avg_obs_fake_quant",
    "LinearAlgebra": "pinverse linalg_pinv linalg_matrix_rank linalg_cond linalg_tensorinv linalg_tensorsolve "
    "linalg_matrix_exp matrix_exp logdet",
    "FFT": "fft_fft fft_ifft fft_fft2 fft_ifft2 fft_fftn fft_ifftn fft_rfft fft_irfft fft_rfft2 fft_irfft2 fft_rfftn "
    "fft_irfftn fft_hfft fft_ihfft fft_hfft2 fft_ihfft2 fft_hfftn fft_ihfftn stft istft",
    "MaxPool": "max_pool1d_with_indices adaptive_max_pool1d",
    "GroupNorm": "group_norm",
    "EmbeddingBag": "embedding_bag",
    "Sum": "nanmean linalg_norm linalg_matrix_norm dist",
    "Sort": "quantile nanquantile",
    "Conv2D": "conv_transpose1d conv_transpose2d conv_transpose3d _convolution_mode slow_conv3d",
    "Conv2DBackward": "cudnn_convolution_backward cudnn_convolution_transpose_backward mkldnn_convolution_backward "
    "miopen_convolution_backward miopen_convolution_transpose_backward miopen_depthwise_convolution_backward",
    "Tile": "meshgrid one_hot",
    "Select": "argwhere nonzero_numpy",
    "Pad": "_pad_circular",
    "Reshape": "reshape_as ravel sum_to_size",
    "Concat": "block_diag",
    "Fill": "diag diagflat",
    "GridSample": "grid_sampler",
}
