"""The paper (Rame, Sun and Cord, ICCV 2021) in the order of a batch: types, pairing, masks, mixer, block, loss.

pairing   M inputs per sample: batch repetition and one shuffle per member      section 3.1
masks     1_M, a binary mask of area ratio kappa                                section 3.2
mixer     kappa ~ Dirichlet(alpha), the mask, the loss weights w_r(kappa)       sections 3.2, 3.3 and 3.5
block     M sum_i coefficient_i * c_i(x_i), the features that the core reads    equation 2
loss      sum_i w_r(kappa_i) CE(y_i, d_i)                                       equation 1
"""
